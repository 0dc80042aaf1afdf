"""The header of a safetensors file: where each tensor lies. Read without a framework, and with suspicion.

Format: 8 bytes little-endian length, a JSON header {name: {dtype, shape, data_offsets}}, the data
(github.com/huggingface/safetensors, README, "Format"). A header is input like any other: its length, types, shapes,
offsets and repeated keys are checked before anything is mapped. A pickle is refused by its bytes, whatever its name.
"""

import json
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from hornbook.errors import IntegrityError
from hornbook.files.filesystem import open_inside, regular_size
from hornbook.files.strict_json import InvalidJson, parse_json

MAX_HEADER_BYTES = 64 * 2**20
ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
ITEM_BYTES |= {"F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "C64": 8}
ITEM_BYTES |= {"I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1}
_ITEM_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6} | {dtype: 8 * size for dtype, size in ITEM_BYTES.items()}
WRITTEN_DTYPES = ("I64", "F64", "F32", "I32", "BF16", "F16", "I16", "I8", "U8", "BOOL")
"""In the order in which the library lays them out."""
_MOST_DIMS = 64
_PICKLE_STARTS = (b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")


@dataclass(frozen=True)
class Entry:
    """One tensor of a file."""

    file: Path
    dtype: str
    """As the format spells it: F32, BF16, F16, ..."""
    shape: tuple[int, ...]
    begin: int
    """Byte of the file at which the data begins."""
    end: int


def read_header(path: Path) -> dict[str, Entry]:
    """Tensors of one file by name. Raises IntegrityError where it is no regular file, damaged, or a pickle."""
    return _read(path)[0]


def read_metadata(path: Path) -> dict[str, Any]:
    """What the header says under `__metadata__`. Raises IntegrityError as `read_header` does."""
    return _read(path)[1]


def read_header_inside(folder: Path, name: str) -> dict[str, Entry]:
    """As `read_header`, of a file inside a folder; a link is no regular file here (`open_inside`)."""
    try:
        file = open_inside(folder, name)
    except OSError as error:
        raise IntegrityError(f"{folder / name}: cannot be read: {error.strerror}") from error
    with os.fdopen(file, "rb") as stream:
        return _parse(folder / name, stream)[0]


def make_header(
    shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, str], metadata: Mapping[str, str] | None
) -> bytes:
    """The bytes before the data, as the safetensors library writes them: tensors by dtype, then in the order of names.

    dtypes: by name; of those in `WRITTEN_DTYPES`.
    """
    content: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in sorted(shapes, key=lambda name: (WRITTEN_DTYPES.index(dtypes[name]), name)):
        begin, end = end, end + prod(shapes[name]) * ITEM_BYTES[dtypes[name]]
        content[name] = {"dtype": dtypes[name], "shape": list(shapes[name]), "data_offsets": [begin, end]}
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _read(path: Path) -> tuple[dict[str, Entry], dict[str, Any]]:
    regular_size(path)
    with path.open("rb") as file:
        return _parse(path, file)


def _parse(path: Path, file: BinaryIO) -> tuple[dict[str, Entry], dict[str, Any]]:
    size, start = os.fstat(file.fileno()).st_size, file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    plausible = 2 <= length <= min(size - 8, MAX_HEADER_BYTES)
    header = file.read(length if plausible else 0)
    if header[:1] != b"{":
        if start.startswith(_PICKLE_STARTS):
            raise IntegrityError(f"{path}: this is a pickle, not safetensors; it can run code and is not read")
        raise IntegrityError(f"{path}: not a safetensors file (its header would be {length} bytes long, of {size})")
    try:
        content = parse_json(header)
    except InvalidJson as error:
        raise IntegrityError(f"{path}: damaged safetensors header: {error}") from error
    metadata = content.pop("__metadata__", None)
    entries = {name: _entry(path, name, value, 8 + length) for name, value in content.items()}
    _check_cover(path, entries, 8 + length, size)
    return entries, metadata if isinstance(metadata, dict) else {}


def _entry(path: Path, name: str, value: Any, data: int) -> Entry:
    """A tensor whose dtype and shape give as many bytes as its offsets; `data`: where the data of the file begins."""
    match value:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [int(begin), int(end)]} if (
            len(shape) <= _MOST_DIMS
            and all(type(dim) is int and 0 <= dim < 2**63 for dim in shape)
            and 0 <= begin <= end
            and dtype in _ITEM_BITS
            and prod(shape) * _ITEM_BITS[dtype] == 8 * (end - begin)
        ):
            return Entry(path, dtype, tuple(shape), data + begin, data + end)
    raise IntegrityError(f"{path}: damaged safetensors header: {name} is described as {str(value)[:200]}")


def _check_cover(path: Path, entries: Mapping[str, Entry], data: int, size: int) -> None:
    """Tensors must lie side by side and fill the file."""
    position = data
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.begin != position:
            raise IntegrityError(
                f"{path}: damaged safetensors header: {name} begins at byte {entry.begin}, not {position}"
            )
        position = entry.end
    if position != size:
        raise IntegrityError(f"{path}: truncated or padded: its header accounts for {position} bytes, it has {size}")
