"""Compares two runs bit for bit: where they differ first, and by how much.

Compared are the token ids of every step's batch (by hash), the losses, and of each checkpoint that both runs have the
clock, the weights and the moments. Equal means equal bits, not close numbers.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.files.filesystem import is_folder, list_folder
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.safetensors import Entry, read_header_inside
from hornbook.run.checkpoints.commit import list_checkpoints, step_of
from hornbook.run.checkpoints.manifest import verify_folder

_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True)
class Part:
    """The comparison of one part of two runs."""

    name: str
    """`tokens`, `losses`, `clock`, `weights` or `optimizer`."""
    compared: int
    """Number of steps that were compared."""
    different: int
    """Number of steps at which they differ."""
    first: int | None = None
    """First step at which they differ."""
    detail: str = ""
    """The difference there."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of two runs."""

    steps: tuple[int, int]
    """Last step of each run."""
    parts: list[Part]

    @property
    def equal(self) -> bool:
        """Whether everything that both runs have is equal to the bit."""
        return not any(part.different for part in self.parts)

    @property
    def parted(self) -> Part | None:
        """The part that differs first."""
        differing = [part for part in self.parts if part.first is not None]
        return min(differing, key=lambda part: part.first or 0, default=None)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        parted = self.parted
        return {
            "equal": self.equal,
            "steps": list(self.steps),
            "parted": None if parted is None else {"part": parted.name, "step": parted.first},
            "parts": [asdict(part) for part in self.parts],
        }


def compare_runs(a: RunDir, b: RunDir) -> Comparison:
    """Compare everything that both runs have.

    Raises UsageError where there is nothing to compare, IntegrityError where a file of either is damaged.
    """
    for run in (a, b):
        if not run.exists():
            raise UsageError(f"{run.path}: no run there")
    left, right = steps_of(a), steps_of(b)
    saved = _common_checkpoints(a, b)
    common = sorted(left.keys() & right.keys())
    if not common and not saved:
        raise UsageError(f"{a.path} and {b.path} have no step and no checkpoint in common")
    parts = [
        _compare("tokens", common, lambda step: _differ(left[step], right[step], "token_hash")),
        _compare("losses", common, lambda step: _differ(left[step], right[step], "loss")),
        _compare("clock", saved, lambda step: _clocks(*saved[step])),
        _compare("weights", saved, lambda step: differing_tensors(*saved[step])),
        _compare("optimizer", saved, lambda step: differing_tensors(*saved[step], prefix="trainer")),
    ]
    return Comparison((max(left, default=0), max(right, default=0)), parts)


def steps_of(run: RunDir) -> dict[int, dict[str, Any]]:
    """Step -> its record, of the attempt that counts."""
    return {record["step"]: record for record in current_branch(read_records(run.metrics))}


def differing_tensors(a: Path, b: Path, prefix: str = "") -> str:
    """A description of the tensors that differ between two checkpoints; "" where none does."""
    left, right = list_tensors(a, prefix), list_tensors(b, prefix)
    if alone := sorted(left.keys() ^ right.keys()):
        return f"{len(alone)} tensors are in one only, {alone[0]} first"
    differing = [name for name in left if not same_bytes(left[name], right[name])]
    if not differing:
        return ""
    first = differing[0]
    return f"{len(differing)} of {len(left)} tensors, {first} first{_distance(left[first], right[first])}"


def _compare(name: str, steps: Iterable[int], differ: Callable[[int], str]) -> Part:
    steps = sorted(steps)
    found = [(step, text) for step in steps if (text := differ(step))]
    if not found:
        return Part(name, len(steps), 0)
    return Part(name, len(steps), len(found), *found[0])


def _differ(a: dict[str, Any], b: dict[str, Any], key: str) -> str:
    return "" if a.get(key) == b.get(key) else f"{a.get(key)} and {b.get(key)}"


def _common_checkpoints(a: RunDir, b: RunDir) -> dict[int, tuple[Path, Path]]:
    """Step -> the two verified checkpoints."""
    left, right = ({step_of(path) or 0: path for path in list_checkpoints(run.checkpoints)} for run in (a, b))
    common = {step: (left[step], right[step]) for step in left.keys() & right.keys()}
    for pair in common.values():
        for folder in pair:
            verify_folder(folder)
    return common


def _clocks(a: Path, b: Path) -> str:
    left, right = (json.loads((folder / "trainer" / "state.json").read_bytes()) for folder in (a, b))
    keys = [key for key in sorted(left.keys() | right.keys()) if left.get(key) != right.get(key)]
    return ", ".join(f"{key} {left.get(key)} and {right.get(key)}" for key in keys)


def _distance(x: Entry, y: Entry) -> str:
    if (x.dtype, x.shape) != (y.dtype, y.shape):
        return f" ({x.dtype} {list(x.shape)} and {y.dtype} {list(y.shape)})"
    left, right = _values(x), _values(y)
    if left is None or right is None:
        return ""
    with np.errstate(invalid="ignore"):
        apart = np.abs(left - right)
    if np.isnan(apart).any():
        return " (not finite)"
    return f" (at most {apart.max():.3g} apart in {int((apart > 0).sum()):,} of {apart.size:,} places)"


def _values(entry: Entry) -> np.ndarray | None:
    """The numbers of a tensor as float64, None for types that are not floating point."""
    raw = read_bytes(entry)
    if entry.dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.frombuffer(raw, _NUMPY[entry.dtype]).astype(np.float64) if entry.dtype in _NUMPY else None


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
