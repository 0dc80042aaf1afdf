"""Tensor files looked at without a framework: headers, raw bytes, and pickles told apart.

Format: 8 bytes little-endian length, a JSON header {name: {dtype, shape, data_offsets}}, the data
(huggingface.co/docs/safetensors). A header is input like any other and is checked before it is believed.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hornbook.errors import IntegrityError
from hornbook.files.filesystem import is_folder, list_folder
from hornbook.files.strict_json import parse_json
from hornbook.run.checkpoints.manifest import open_inside

_HEADER_LIMIT = 100_000_000
_ITEM_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
_ITEM_BYTES |= {"I8": 1, "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1}
_MOST_DIMS = 64
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True)
class TensorPlace:
    """Where a tensor lies in its file."""

    file: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int
    """Byte offsets in the file."""


def check_weights(folder: Path) -> None:
    """IntegrityError unless the folder's weights are safetensors files; a pickle is never opened."""
    names = sorted(entry.name for entry in folder.iterdir())
    tensors = [name for name in names if name.endswith(".safetensors")]
    pickles = [name for name in names if name.endswith(_PICKLES)]
    if not tensors and pickles:
        raise IntegrityError(
            f"{folder}: the weights are in a pickle ({pickles[0]}), which can run any code when it is read; "
            "hornbook reads safetensors only: convert the file where that is safe"
        )
    if not tensors:
        raise IntegrityError(f"{folder}: there are no weights (*.safetensors) in it")
    for name in tensors:
        read_header(folder, name)


def list_tensors(folder: Path, prefix: str = "") -> dict[str, TensorPlace]:
    """All tensors of the safetensors files in `folder/prefix`, by name."""
    files = [path.name for path in list_folder(folder / prefix, "*.safetensors")] if is_folder(folder / prefix) else []
    tensors: dict[str, TensorPlace] = {}
    for file in files:
        tensors |= read_header(folder, f"{prefix}/{file}" if prefix else file)
    return tensors


def read_header(folder: Path, name: str) -> dict[str, TensorPlace]:
    """Tensors of one file; IntegrityError where it is not a safetensors file, whatever its name says."""
    where = f"{folder / name}"
    try:
        file = open_inside(folder, name)
    except OSError as error:
        raise IntegrityError(f"{where} cannot be read ({error.strerror})") from error
    with os.fdopen(file, "rb") as stream:
        size = os.fstat(file).st_size
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _HEADER_LIMIT):
            raise IntegrityError(f"{where} is not a safetensors file, or it is cut short (a pickle is never read)")
        raw = stream.read(length)
    try:
        entries = parse_json(raw)
        entries.pop("__metadata__", None)
        places = {key: _place(name, entry, 8 + length) for key, entry in entries.items()}
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise IntegrityError(f"{where}: the header is damaged ({error})") from error
    _check_cover(where, places, 8 + length, size)
    return places


def compare_bytes(a: Path, b: Path, x: TensorPlace, y: TensorPlace) -> bool:
    """Whether two tensors have the same type, shape and bits."""
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return False
    return all(left == right for left, right in zip(_chunks(a, x), _chunks(b, y), strict=True))


def read_bytes(folder: Path, place: TensorPlace) -> bytes:
    """The data of one tensor."""
    return b"".join(_chunks(folder, place))


def _chunks(folder: Path, place: TensorPlace, size: int = 4 << 20) -> Iterator[bytes]:
    file = open_inside(folder, place.file)
    try:
        for begin in range(place.begin, place.end, size):
            yield os.pread(file, min(size, place.end - begin), begin)
    finally:
        os.close(file)


def _place(file: str, entry: dict[str, Any], data: int) -> TensorPlace:
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    if len(shape) > _MOST_DIMS or any(type(n) is not int or not 0 <= n < 2**63 for n in (*shape, begin, end)):
        raise ValueError("shapes and offsets are whole numbers")
    if end - begin != math.prod(shape) * _ITEM_BYTES[entry["dtype"]]:
        raise ValueError("shape and offsets do not agree")
    return TensorPlace(file, entry["dtype"], shape, data + begin, data + end)


def _check_cover(where: str, places: dict[str, TensorPlace], data: int, size: int) -> None:
    """Tensors must lie side by side and fill the file."""
    end = data
    for place in sorted(places.values(), key=lambda place: (place.begin, place.end)):
        if place.begin != end:
            raise IntegrityError(f"{where}: the header is damaged (tensors overlap or leave gaps)")
        end = place.end
    if end != size:
        raise IntegrityError(f"{where} has {size:,} bytes instead of {end:,}")
