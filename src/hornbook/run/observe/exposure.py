"""Which steps learned from a document or a source: those of a run, and those that its origin had done before."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hornbook.data.loader.loader import Loader, build_loader
from hornbook.data.loader.provenance import (
    FoundDocument,
    Learned,
    all_streams,
    end_of,
    find_documents,
    first_step,
    positions_of_documents,
)
from hornbook.errors import UsageError
from hornbook.files.journal import current_branch, read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.ledger import replay
from hornbook.run.start.bound import recipe_in_force
from hornbook.run.start.lineage import lineage_of


@dataclass(frozen=True)
class Through:
    """Steps of an origin, up to the one that was taken over."""

    run: RunDir
    steps: list[int]


@dataclass(frozen=True)
class Exposure:
    """What is known of a run and a document or source."""

    known: bool
    """The data of the run, or of what it began from, has it."""
    documents: list[FoundDocument]
    """Where it is a document: its places in the run's own data."""
    steps: list[int]
    """Of the run itself; of a source only the first."""
    through: list[Through]
    """Steps of its origins; those without any are left out."""
    unknown: tuple[str, ...]
    """What it began from and nothing is known of."""
    runs_on_to: int
    """Last step of the run."""

    @property
    def first(self) -> int | None:
        """The first step of the run whose weights know it: 0 where its origin did; None where none does."""
        return 0 if self.through else min(self.steps, default=None)


class Tracer:
    """Asks runs for one document (by id or origin) or source; each is read once."""

    def __init__(self, name: str, runs: Sequence[RunDir]) -> None:
        self._name, self._runs = name, list(runs)
        self._own: dict[object, _Own] = {}

    def exposure(self, run: RunDir) -> Exposure:
        """Raises UsageError or IntegrityError where the run, its data or an origin cannot be read."""
        own, lineage = self._seen(run), lineage_of(run, self._runs)
        known, through = own.known, []
        for ancestor in lineage.ancestors:
            theirs = self._seen(ancestor.run)
            known |= theirs.known
            if steps := [step for step in theirs.steps if step <= ancestor.step]:
                through.append(Through(ancestor.run, steps))
        return Exposure(known, own.documents, own.steps, through, lineage.unknown, own.runs_on_to)

    def _seen(self, run: RunDir) -> "_Own":
        key = run.path.resolve()
        if key not in self._own:
            self._own[key] = _Own(run, self._name)
        return self._own[key]


class _Own:
    """What the steps of one run saw."""

    def __init__(self, run: RunDir, name: str) -> None:
        loader, self._learned = loader_of(run), learned(run)
        self._index, self._name = loader.index, name
        self.is_source = name in loader.corpus.train
        self.documents = [] if self.is_source else find_documents(all_streams(self._index), name)
        self.known = self.is_source or bool(self.documents)
        self.runs_on_to = int(self._learned.steps[-1]) if len(self._learned.steps) else 0

    @cached_property
    def steps(self) -> list[int]:
        """Those that learned from it, ascending."""
        if self.is_source:
            first = first_step(self._index, self._name, self._learned)
            return [] if first is None else [first]
        if not self.documents:
            return []
        positions = positions_of_documents(self._index, self.documents, self._learned.end)
        return sorted({step for step in self._learned.step_of(positions).tolist() if step >= 0})


def loader_of(run: RunDir) -> Loader:
    """The batches of a run. Raises UsageError where its recipe names no data, or none that is there."""
    recipe = recipe_in_force(run)
    if recipe.data.path is None:
        raise UsageError(f"{run.recipe} names no data")
    train = recipe.train
    return build_loader(
        recipe.data,
        recipe.data.path,
        sequence=train.sequence,
        micro_batch=train.micro_batch,
        seed=recipe.seed,
        prefetch=False,
    )


def windows_of(run: RunDir) -> list[tuple[int, int]]:
    """Skipped positions of a run."""
    return replay(record for record, _ in read_records(run.events)).windows


def learned(run: RunDir) -> Learned:
    """Which positions a run learned from, in which steps."""
    keys = ("attempt", "step", "first_sample", "num_samples")
    windows = windows_of(run)
    records = current_branch({key: record[key] for key in keys} for record, _ in read_records(run.metrics))
    spans = ((each["step"], each["first_sample"], each["num_samples"]) for each in records)
    rows = [(step, first, end_of(windows, first, count)) for step, first, count in spans if count]
    steps, firsts, ends = np.array(rows, np.int64).reshape(-1, 3).T
    return Learned(steps, firsts, ends, windows)
