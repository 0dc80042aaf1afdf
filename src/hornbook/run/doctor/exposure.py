"""Finds the samples of a step, and the steps that learned from a document or a source, in a run and in its origins."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int64

from hornbook.data.loader.loader import Loader, merge_ranges, positions_of
from hornbook.data.loader.provenance import (
    FoundDocument,
    Learned,
    all_streams,
    end_of,
    find_documents,
    first_step,
    positions_of_documents,
)
from hornbook.errors import IntegrityError, UsageError, quoted
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.bound import recipe_in_force
from hornbook.run.checkpoints.lineage import lineage_of
from hornbook.run.job.run_inputs import open_loader
from hornbook.run.ledger.ledger import read_past, replay


@dataclass(frozen=True)
class OriginSteps:
    """Steps of an origin, up to its checkpoint that was used."""

    run: RunDir
    steps: list[int]


@dataclass(frozen=True)
class Exposure:
    """The steps of a run that learned from a document or source."""

    known: bool
    """Whether the data of the run or of an origin has it."""
    documents: list[FoundDocument]
    """Places of a document in the run's own data; empty for a source."""
    steps: list[int]
    """Steps of the run itself; for a source only the first."""
    origins: list[OriginSteps]
    """Steps of the origins that have any."""
    unknown: tuple[str, ...]
    """Origins that cannot be looked up."""
    last_step: int

    @property
    def first(self) -> int | None:
        """The first step after which the weights had learned from it: 0 where an origin did; None: never."""
        return 0 if self.origins else min(self.steps, default=None)


class Tracer:
    """Looks up one document (by id or origin) or source in runs; reads each run once."""

    def __init__(self, name: str, runs: Sequence[RunDir]) -> None:
        self._name, self._runs = name, list(runs)
        self._by_run: dict[Path, _RunSteps] = {}

    def exposure(self, run: RunDir) -> Exposure:
        """Raises UsageError or IntegrityError where the run, its data or an origin cannot be read."""
        own, lineage = self._steps_of(run), lineage_of(run, self._runs)
        known, origins = own.known, []
        for ancestor in lineage.ancestors:
            theirs = self._steps_of(ancestor.run)
            known |= theirs.known
            if steps := [step for step in theirs.steps if step <= ancestor.step]:
                origins.append(OriginSteps(ancestor.run, steps))
        return Exposure(known, own.documents, own.steps, origins, lineage.unknown, own.last_step)

    def _steps_of(self, run: RunDir) -> "_RunSteps":
        key = run.path.resolve()
        if key not in self._by_run:
            self._by_run[key] = _steps_in(run, self._name)
        return self._by_run[key]


class _RunSteps(NamedTuple):
    """The steps of one run alone that learned from a document or source, ascending."""

    known: bool
    documents: list[FoundDocument]
    steps: list[int]
    last_step: int


def _steps_in(run: RunDir, name: str) -> _RunSteps:
    loader, past = loader_of(run), learned(run)
    last_step = int(past.steps[-1]) if len(past.steps) else 0
    if name in loader.corpus.train:
        first = first_step(loader.index, name, past)
        return _RunSteps(True, [], [] if first is None else [first], last_step)
    documents = find_documents(all_streams(loader.index), name)
    if not documents:
        return _RunSteps(False, [], [], last_step)
    positions = positions_of_documents(loader.index, documents, past.end)
    steps = {step for step in past.step_of(positions).tolist() if step >= 0}
    return _RunSteps(True, documents, sorted(steps), last_step)


def loader_of(run: RunDir) -> Loader:
    """The loader of a run. Raises UsageError where its recipe names no data, or data that is gone."""
    recipe = recipe_in_force(run)
    if recipe.data.path is None:
        raise UsageError(f"{run.recipe} names no data")
    return open_loader(recipe, recipe.data.path, prefetch=False)


def learned(run: RunDir) -> Learned:
    """The positions that each step of a run learned from."""
    keys = ("attempt", "step", "first_sample", "num_samples")
    skipped_ranges = read_past(run).skipped_ranges
    records = current_branch({key: record[key] for key in keys} for record in read_records(run.metrics))
    spans = ((each["step"], each["first_sample"], each["num_samples"]) for each in records)
    rows = [(step, first, end_of(skipped_ranges, first, count)) for step, first, count in spans if count]
    steps, firsts, ends = np.array(rows, np.int64).reshape(-1, 3).T
    return Learned(steps, firsts, ends, skipped_ranges)


@dataclass(frozen=True)
class StepSamples:
    """The samples that a step read."""

    record: dict[str, Any]
    """The step's line of metrics.jsonl."""
    positions: Int64[np.ndarray, " n"]
    other_attempts: tuple[int, ...] = ()
    """Attempts that did a step of this number on other tokens."""


def samples_of_step(run: RunDir, loader: Loader, step: int, attempt: int | None = None) -> StepSamples:
    """The samples of one step: `StepFinder.samples`."""
    return StepFinder(run, loader).samples(step, attempt)


class StepFinder:
    """Finds the samples of steps in the records of a run, which it reads once."""

    def __init__(self, run: RunDir, loader: Loader) -> None:
        """Raises IntegrityError where the records are damaged."""
        self._run, self._loader = run, loader
        lines, self._events = list(read_records(run.metrics)), list(read_records(run.events))
        self.steps = {each["step"]: each for each in current_branch(lines)}
        """The record of each step by its last attempt."""
        self._lines: dict[int, list[dict[str, Any]]] = {}
        for each in lines:
            self._lines.setdefault(each["step"], []).append(each)

    def samples(self, step: int, attempt: int | None = None) -> StepSamples:
        """The samples of a step: as it counts, or as an attempt did it before the run went back.

        UsageError where the run, or the attempt, has no such step; IntegrityError where the data is not what it was.
        """
        run, index, done = self._run, self._loader.index, self._lines.get(step, [])
        of_attempt = next((each for each in reversed(done) if each["attempt"] == attempt), None)
        record = of_attempt if attempt else self.steps.get(step)
        if record is None:
            of = f"attempt {attempt} of {run.path}" if attempt else str(run.path)
            raise UsageError(f"{of} has not done step {step}: its metrics do not have it")
        for skipped in self._skipped_until(record["attempt"]):
            free = positions_of(0, record["num_samples"], merge_ranges([*skipped, (0, record["first_sample"])]))
            if index.batch(free, self._loader.micro_batch).token_hash == record["token_hash"]:
                others = {each["attempt"] for each in done if each["token_hash"] != record["token_hash"]}
                return StepSamples(record, free, tuple(sorted(others)))
        raise IntegrityError(
            f"step {step} read tokens {record['token_hash']}, the data has others now: it was changed. "
            f"`hornbook verify {quoted(run.path)} --data` names the shard"
        )

    def _skipped_until(self, attempt: int) -> list[list[tuple[int, int]]]:
        """Skipped ranges that an attempt may have known: all up to its end, and those of before it."""
        known = [
            replay(each for each in self._events if each["attempt"] <= last).skipped_ranges
            for last in (attempt, attempt - 1)
        ]
        return known[:1] if known[0] == known[1] else known
