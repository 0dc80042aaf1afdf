"""Folders of safetensors: one file, or shards joined by an index; read with suspicion.

A checkpoint from elsewhere is untrusted input: names in an index must be plain names of regular files, and headers are
checked before anything is mapped (`files/safetensors.py`).
"""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hornbook.errors import IntegrityError
from hornbook.files.filesystem import exists, is_folder
from hornbook.files.json_files import read_json
from hornbook.files.safetensors import PICKLE_SUFFIXES, Entry, read_header

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
SHARD_BYTES = 5 * 10**9
"""Tensors of one file at most (a single larger tensor gets a file of its own)."""
_PLAIN_NAME = re.compile(r"[^/\\\0]*\.safetensors")
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
"""Of weights."""
CODES = {each: code for code, each in DTYPES.items()}
CODES |= {torch.float64: "F64", torch.int64: "I64", torch.int32: "I32", torch.int16: "I16"}
CODES |= {torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL"}
"""Of other tensors too, as the format spells them."""


def list_tensors(folder: Path) -> dict[str, Entry]:
    """Every tensor of a folder by name, from checked headers; no tensor is read."""
    if exists(folder / INDEX) and not exists(folder / SINGLE):
        return _list_sharded(folder)
    if not exists(folder / SINGLE):
        raise IntegrityError(_nothing_to_read(folder))
    return read_header(folder / SINGLE)


def _list_sharded(folder: Path) -> dict[str, Entry]:
    where = read_json(folder / INDEX).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise IntegrityError(f"{folder / INDEX}: it has no weight_map")
    for file in where.values():
        if not isinstance(file, str) or not _PLAIN_NAME.fullmatch(file):
            raise IntegrityError(f"{folder / INDEX}: {file!r} is not the plain name of a .safetensors file")
    found: dict[str, Entry] = {}
    for file in sorted(set(where.values())):
        found.update((name, entry) for name, entry in read_header(folder / file).items() if where.get(name) == file)
    if missing := sorted(set(where) - set(found)):
        raise IntegrityError(
            f"{folder / INDEX}: {where[missing[0]]} does not hold {missing[0]} ({len(missing)} missing in all)"
        )
    return found


def _nothing_to_read(folder: Path) -> str:
    if not is_folder(folder):
        return f"{folder}: no such folder"
    pickles = sorted(each.name for each in folder.iterdir() if each.name.endswith(PICKLE_SUFFIXES))
    if pickles:
        return (
            f"{folder}: holds pickled weights only ({pickles[0]}). Unpickling can run code, so hornbook reads "
            "safetensors only: convert it where that is no risk (transformers' save_pretrained writes safetensors)"
        )
    return f"{folder}: holds no {SINGLE} and no {INDEX}"


def mismatches(expected: Mapping[str, tuple[int, ...]], found: Mapping[str, Entry]) -> list[str]:
    """Which tensors are missing, unexpected, or of another shape than expected."""
    problems = name_mismatches(expected.keys(), found.keys())
    for name, shape in expected.items():
        if name in found and found[name].shape != shape:
            problems.append(f"{name}: expected shape {list(shape)}, found {list(found[name].shape)}")
    return problems


def name_mismatches(expected: Set[str], found: Set[str]) -> list[str]:
    """Which names are missing, and which unexpected."""
    differing = (("missing", expected - found), ("unexpected", found - expected))
    return [f"{what}: {named(names)}" for what, names in differing if names]


def refuse_mismatches(what: str, problems: Sequence[str]) -> None:
    """IntegrityError with the first problems, if there are any."""
    if problems:
        shown = [*problems[:8], *([f"and {len(problems) - 8} more"] if len(problems) > 8 else [])]
        raise IntegrityError(f"{what}:\n  " + "\n  ".join(shown))


class Reader:
    """Tensors of a folder, one at a time; each file is opened once."""

    def __init__(self) -> None:
        self._open: dict[Path, Any] = {}

    def read(self, name: str, entry: Entry) -> Tensor:
        """The tensor as stored, on the CPU."""
        try:
            if entry.file not in self._open:
                self._open[entry.file] = safe_open(entry.file, framework="pt")
            return self._open[entry.file].get_tensor(name)
        except (SafetensorError, OSError) as error:
            raise IntegrityError(f"{entry.file}: {error}") from error


def plan_shards(sizes: Mapping[str, int], limit: int = SHARD_BYTES) -> dict[str, list[str]]:
    """File name -> names of its tensors, in the order of `sizes` (bytes of each tensor)."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, size in sizes.items():
        if shards[-1] and filled + size > limit:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += size
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    total = len(shards)
    return {f"model-{i:05d}-of-{total:05d}.safetensors": names for i, names in enumerate(shards, 1)}


def named(names: Iterable[str], limit: int = 5) -> str:
    """A few of many names, for an error message."""
    listed = sorted(names)
    return ", ".join(listed[:limit]) + (f" and {len(listed) - limit} more" if len(listed) > limit else "")
