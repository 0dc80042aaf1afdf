"""Compares two runs bit for bit: where they differ first, and by how much.

Compared are the token ids of every step's batch (by hash), the losses and gradient norms, the tensors of every save (by
their digest in the ledger), and of each checkpoint that both runs still have the clock, the weights and the moments.
Equal means equal bits, not close numbers.
"""

import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.files.filesystem import is_folder, list_folder
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import steps_that_count
from hornbook.files.safetensors import Entry, read_header_inside
from hornbook.run.checkpoints.commit import list_checkpoints, step_of
from hornbook.run.checkpoints.manifest import verify_folder

_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


@dataclass(frozen=True)
class Part:
    """The comparison of one part of two runs."""

    name: str
    """`tokens`, `losses`, `norms`, `saves`, `clock`, `weights` or `optimizer`."""
    compared: int
    different: int
    """Of the compared steps, the number of those at which they differ."""
    first: int | None = None
    """First step at which they differ."""
    detail: str = ""


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
    """Compare all that both runs have. UsageError where there is nothing, IntegrityError for a damaged file."""
    for run in (a, b):
        run.must_exist()
    left, right = ({record["step"]: record for record in steps_that_count(run)} for run in (a, b))
    saved, mine, theirs = _common_checkpoints(a, b), _saved_tensors(a, left), _saved_tensors(b, right)
    common = sorted(left.keys() & right.keys())
    if not common and not saved:
        raise UsageError(f"{a.path} and {b.path} have no step and no checkpoint in common")
    parts = [
        _compare("tokens", common, lambda step: _differ(left[step], right[step], "token_hash")),
        _compare("losses", common, lambda step: _differ(left[step], right[step], "loss")),
        _compare("norms", common, lambda step: _differ(left[step], right[step], "gradient_norm")),
        _compare("saves", mine.keys() & theirs.keys(), lambda step: _differ(mine, theirs, step)),
        _compare("clock", saved, lambda step: _clocks(*saved[step])),
        _compare("guard", saved, lambda step: _guards(*saved[step])),
        _compare("weights", saved, lambda step: differing_tensors(*saved[step])),
        _compare("optimizer", saved, lambda step: differing_tensors(*saved[step], prefix="trainer")),
    ]
    return Comparison((max(left, default=0), max(right, default=0)), parts)


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


def _compare(name: str, steps: Collection[int], differ: Callable[[int], str]) -> Part:
    found = [(step, text) for step in sorted(steps) if (text := differ(step))]
    first, detail = found[0] if found else (None, "")
    return Part(name, len(steps), len(found), first, detail)


def _differ(a: Mapping[Any, Any], b: Mapping[Any, Any], key: str | int) -> str:
    return "" if a.get(key) == b.get(key) else f"{a.get(key)} and {b.get(key)}"


def _common_checkpoints(a: RunDir, b: RunDir) -> dict[int, tuple[Path, Path]]:
    """Step -> the two verified checkpoints."""
    left, right = ({step_of(path) or 0: path for path in list_checkpoints(run.checkpoints)} for run in (a, b))
    common = {step: (left[step], right[step]) for step in left.keys() & right.keys()}
    for pair in common.values():
        for folder in pair:
            verify_folder(folder)
    return common


def _saved_tensors(run: RunDir, steps: Mapping[int, Mapping[str, Any]]) -> dict[int, str]:
    """Step -> digest of the tensors that were saved at it, for saves of the attempts that count."""
    noted = (each for each in read_records(run.events) if each.get("kind") == "save" and "tensors" in each)
    counts = (each for each in noted if steps.get(each["step"], each)["attempt"] <= each["attempt"])
    return {each["step"]: each["tensors"] for each in counts}


def _clocks(a: Path, b: Path) -> str:
    left, right = _counters(a), _counters(b)
    keys = [key for key in sorted(left.keys() | right.keys()) if key != "guard" and left.get(key) != right.get(key)]
    return ", ".join(f"{key} {left.get(key)} and {right.get(key)}" for key in keys)


def _guards(a: Path, b: Path) -> str:
    left, right = (_counters(folder).get("guard") or {} for folder in (a, b))
    return ", ".join(key for key in sorted(left.keys() | right.keys()) if left.get(key) != right.get(key))


def _counters(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "trainer" / "state.json").read_bytes())


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
    raw = b"".join(_chunks(entry))
    if entry.dtype == "BF16":  # the upper half of a float32
        return (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4").astype(np.float64)
    return np.frombuffer(raw, _NUMPY[entry.dtype]).astype(np.float64) if entry.dtype in _NUMPY else None


def list_tensors(folder: Path, prefix: str = "") -> dict[str, Entry]:
    """All tensors of the safetensors files in `folder/prefix`, by name."""
    tensors: dict[str, Entry] = {}
    for path in list_folder(folder / prefix, "*.safetensors") if is_folder(folder / prefix) else ():
        tensors |= read_header_inside(folder, path.relative_to(folder).as_posix())
    return tensors


def same_bytes(a: Entry, b: Entry) -> bool:
    """Whether two tensors have the same type, shape and bits."""
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return all(left == right for left, right in zip(_chunks(a), _chunks(b), strict=True))


def _chunks(entry: Entry, size: int = 4 << 20) -> Iterator[bytes]:
    with entry.file.open("rb") as file:
        for begin in range(entry.begin, entry.end, size):
            yield os.pread(file.fileno(), min(size, entry.end - begin), begin)
