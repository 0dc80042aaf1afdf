"""Compares two runs bit for bit, and checks one run for damage.

A comparison covers the token ids of every step's batch (by hash), the losses, and of each checkpoint that both runs
have the clock, the weights and the moments. Equal means equal bits, not close numbers.
"""

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.errors import HornbookError, IntegrityError, UsageError
from hornbook.files.filesystem import exists, is_file
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import find_runs
from hornbook.files.safetensors import Entry
from hornbook.run.checkpoints.commit import list_checkpoints, step_of
from hornbook.run.checkpoints.manifest import unlisted, verify_folder
from hornbook.run.checkpoints.tensor_headers import list_tensors, read_bytes, same_bytes
from hornbook.run.ledger import Monotone, check_ledger, read_past, remedy
from hornbook.run.start.bound import (
    describe_edits,
    edited_settings,
    metrics_problem,
    recipe_in_force,
    why_foreign,
)
from hornbook.run.start.lineage import lineage_of

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
    return {record["step"]: record for record in current_branch(record for record, _ in read_records(run.metrics))}


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


@dataclass(frozen=True)
class Finding:
    """One check of one run."""

    what: str
    ok: bool
    text: str


@dataclass
class Checkup:
    """All checks of one run."""

    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return all(finding.ok for finding in self.findings)

    def try_check(self, what: str, check: Callable[[], str]) -> None:
        """Record the result of a check, or the error it raises."""
        try:
            self.findings.append(Finding(what, True, check()))
        except HornbookError as error:
            self.findings.append(Finding(what, False, str(error)))


def check_run(run: RunDir, *, read_data: bool = False) -> Checkup:
    """Verify the chain of the ledger, and recipe, metrics, checkpoints and data against it.

    `read_data` reads every byte of the token shards; otherwise their digests and sizes are compared.
    """
    if not run.exists():
        raise UsageError(f"{run.path}: no run there")
    checkup = Checkup()
    checkup.try_check("ledger", lambda: _check_ledger(run))
    past = read_past(run) if checkup.ok else Monotone()
    if is_file(run.recipe):
        checkup.try_check("recipe", lambda: _check_recipe(run, past))
    checkup.try_check("metrics", lambda: _check_metrics(run, past))
    for folder in list_checkpoints(run.checkpoints):
        checkup.try_check(folder.name, lambda folder=folder: _check_checkpoint(run, past, folder))
    with suppress(HornbookError):  # a damaged ledger was reported above
        if text := lineage_of(run, find_runs(run.path.parent)).describe():
            checkup.findings.append(Finding("origin", True, text))
    if exists(run.data_lock):
        checkup.try_check("data", lambda: _check_data(run, read_data))
    return checkup


def _check_ledger(run: RunDir) -> str:
    """Check the chain of the ledger, and that it reaches as far as the other files of the run."""
    records = check_ledger(run)
    kinds = [record["kind"] for record, _ in read_records(run.events) if "kind" in record]
    state = run.read_state()
    cut = None
    if not records and (exists(run.metrics) or list_checkpoints(run.checkpoints)):
        cut = "it has no records, though the run began"
    elif state is not None and state["status"] == "finished" and "finish" not in kinds:
        cut = f"its last record is of the kind {kinds[-1]}, though state.json says that the run finished"
    elif state is not None and state["attempt"] > read_past(run).attempt:
        cut = f"it ends in attempt {read_past(run).attempt}, though state.json is of attempt {state['attempt']}"
    if cut:
        raise IntegrityError(f"{run.events}: {cut}: it was cut or deleted. {remedy(run)}")
    return f"{records:,} records, the chain holds"


def _check_recipe(run: RunDir, past: Monotone) -> str:
    if past.recipe is None:
        return "the version that made the run noted nothing to compare it with"
    if edits := edited_settings(run, past):
        raise IntegrityError(describe_edits(run, edits))
    return "what the ledger says"


def _check_metrics(run: RunDir, past: Monotone) -> str:
    problem = metrics_problem(run, past)
    if problem is not None:
        raise IntegrityError(problem)
    steps = steps_of(run)
    missing = sorted(set(range(min(steps), max(steps) + 1)) - steps.keys()) if steps else []
    if missing:
        raise IntegrityError(f"{run.metrics}: step {missing[0]:,} is missing ({len(missing):,} in all)")
    return f"{len(steps):,} steps"


def _check_checkpoint(run: RunDir, past: Monotone, folder: Path) -> str:
    manifest = verify_folder(folder)
    foreign = why_foreign(run, past, manifest) if past.chain else None
    if foreign is not None:
        raise IntegrityError(f"{folder}: {foreign}")
    if extra := unlisted(folder, manifest):
        raise IntegrityError(
            f"{folder}: its manifest does not list {', '.join(extra)}: move what does not belong there"
        )
    return f"{manifest.total_bytes:,} bytes verified"


def _check_data(run: RunDir, read: bool) -> str:
    from hornbook.data.corpus import Corpus
    from hornbook.run.start.environment import check_data_lock

    path = recipe_in_force(run).data.path
    if path is None:
        raise IntegrityError(f"{run.recipe} names no data")
    corpus = Corpus.open(path)
    check_data_lock(run.data_lock, corpus.lock())
    if read:
        corpus.verify()
    return f"{path} is what the run began with" + (", every byte read" if read else "")
