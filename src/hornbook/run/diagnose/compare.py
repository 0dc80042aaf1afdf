"""Tensor files of checkpoints, looked at without a framework: their headers and their raw bytes."""

import os
from collections.abc import Iterator
from pathlib import Path

from hornbook.errors import IntegrityError
from hornbook.files.filesystem import is_folder, list_folder
from hornbook.files.safetensors import PICKLE_SUFFIXES, Entry, read_header_inside


def check_weights(folder: Path) -> None:
    """IntegrityError unless the folder's weights are safetensors files; a pickle is never opened."""
    names = sorted(entry.name for entry in folder.iterdir())
    tensors = [name for name in names if name.endswith(".safetensors")]
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    if not tensors and pickles:
        raise IntegrityError(
            f"{folder}: the weights are in a pickle ({pickles[0]}), which can run any code when it is read; "
            "hornbook reads safetensors only: convert the file where that is safe"
        )
    if not tensors:
        raise IntegrityError(f"{folder}: there are no weights (*.safetensors) in it")
    for name in tensors:
        read_header_inside(folder, name)


def list_tensors(folder: Path, prefix: str = "") -> dict[str, Entry]:
    """All tensors of the safetensors files in `folder/prefix`, by name."""
    files = [path.name for path in list_folder(folder / prefix, "*.safetensors")] if is_folder(folder / prefix) else []
    tensors: dict[str, Entry] = {}
    for file in files:
        tensors |= read_header_inside(folder, f"{prefix}/{file}" if prefix else file)
    return tensors


def same_bytes(a: Entry, b: Entry) -> bool:
    """Whether two tensors have the same type, shape and bits."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return all(left == right for left, right in zip(_chunks(a), _chunks(b), strict=True))


def read_bytes(entry: Entry) -> bytes:
    """The data of one tensor."""
    return b"".join(_chunks(entry))


def _chunks(entry: Entry, size: int = 4 << 20) -> Iterator[bytes]:
    with entry.file.open("rb") as file:
        for begin in range(entry.begin, entry.end, size):
            yield os.pread(file.fileno(), min(size, entry.end - begin), begin)
