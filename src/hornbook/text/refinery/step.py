"""The kinds of step that the refinery has, and the steps of a recipe: each process and task makes its own instances.

Steps come in this order. Edits change the text of one document; the steps after them see the edited text. Decisions
drop documents: by columns measured on each document alone, or by sketches of all documents. Cuts remove parts of
documents by sketches of all documents. No result depends on how documents are spread over tasks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.text.config.step import StepConfig
from hornbook.text.ingest.document import Document

Columns = Mapping[str, np.ndarray]


class Measurer:
    """Measures columns of documents. Steps whose measurers have the same name share them: each is asked once."""

    name: str
    """Columns are stored as `name.column`."""
    columns: Mapping[str, str] = {}
    """Column -> numpy dtype: int64, float64 or bool; "str" for text, "list" for lists of uint32."""

    def measure(self, documents: Sequence[Document]) -> Columns:
        """Every column, a value per document."""
        raise NotImplementedError


class Step:
    """A step; `config` is its entry in `text.steps`."""

    reasons: tuple[str, ...] = ()
    """Why it drops documents; an edit has at most one. `build` puts the name of a step that has one before them."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.name: str = config.label
        """Used in columns and in the funnel."""

    def check(self, columns: Mapping[str, str]) -> None:
        """Raises UsageError where the measured columns of all steps (full name -> dtype) lack what this step needs."""


class Edit(Step):
    """Changes texts. Its changes are counted by kind, for each document, in columns `name.counter`."""

    counters: tuple[str, ...] = ()

    def edit(self, document: Document) -> tuple[str | None, tuple[int, ...]]:
        """The new text, or None to drop the document; and the number of changes for each counter."""
        raise NotImplementedError


class MeasuringStep(Step, Measurer):
    """A step that looks at columns. One with columns of its own is its own measurer, unless `measurers` says others."""

    @cached_property
    def measurers(self) -> tuple[Measurer, ...]:
        """The measurers whose columns it needs."""
        return (self,) if self.columns else ()

    @cached_property
    def needs(self) -> tuple[str, ...]:
        """Full names of the columns it reads; by default all of its own."""
        return tuple(f"{self.name}.{column}" for column in self.columns)


class Decision(MeasuringStep):
    """Drops documents by their columns alone, so that thresholds can be moved without reading any text again."""

    fixed: tuple[str, ...] = ()
    """Numbers of the configuration that are part of measuring, though no column's name shows it: no thresholds."""

    def decide(self, columns: Columns) -> np.ndarray:
        """uint8 [rows]: 0 keeps, k drops for `reasons[k - 1]`; without reasons it keeps all."""
        return np.zeros(len(columns[self.needs[0]]), np.uint8)

    def sweep(self, columns: Columns, key: str) -> Callable[[Any], np.ndarray]:
        """A function of one threshold of the configuration: which rows are kept, bool [rows]."""
        return lambda value: self.config.model_copy(update={key: value}).build().decide(columns) == 0


@dataclass(frozen=True, slots=True)
class CorpusView:
    """What a global step sees: all documents in the order (task, row)."""

    alive: np.ndarray
    """bool [rows]: not dropped by an earlier step."""
    columns: Columns
    """The columns it needs, of all rows: numbers (8 bytes a row) and hashes (16), in memory while the step runs."""
    sketches: Sequence[np.ndarray]
    """One array per task: the results of `sketch` for its batches, appended; mapped into memory from disk."""
    firsts: Sequence[int]
    """The row of each task's first document."""
    scratch: Path
    """An empty folder for files."""
    stream: Callable[[str], Iterator[np.ndarray]]
    """A column task by task, read anew each time: for steps that do not hold all of it in memory."""


class SketchingStep(MeasuringStep):
    """Decides by sketches of all documents. Its `needs` may name `hash` (uint64 [rows, 2]) and `bytes` too."""

    sketches = True
    """False where the columns it needs are enough."""

    def sketch(self, documents: Sequence[Document], first: int) -> np.ndarray:
        """An array whose first axis is free; `first` is the row of the first document in its task.

        Batches of a task are appended to each other; all have the same dtype and the same other axes.
        """
        raise NotImplementedError


class GlobalDecision(SketchingStep):
    """Drops documents by what they have in common with others."""

    def decide_all(self, corpus: CorpusView) -> np.ndarray:
        """uint8 [rows]: 0 keeps, k drops for `reasons[k - 1]`. The values of rows that are not alive are ignored."""
        raise NotImplementedError


class Cut(SketchingStep):
    """Removes parts of documents by what they have in common with others."""

    def cuts(self, corpus: CorpusView) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, start, end), int64, sorted, without overlaps: bytes of the UTF-8 text of rows that are alive."""
        raise NotImplementedError


MOST_REASONS = 255
"""Of one step, which names them by a byte; with at most 255 steps all reasons have numbers of two bytes."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a recipe, each list in its order."""

    edits: list[Edit]
    decisions: list[Decision | GlobalDecision]
    cuts: list[Cut]
    measurers: list[Measurer]
    """Each name once."""

    @property
    def sketched(self) -> list[SketchingStep]:
        """The steps that need sketches of every document."""
        return [each for each in (*self.decisions, *self.cuts) if isinstance(each, SketchingStep) and each.sketches]

    @property
    def counters(self) -> list[str]:
        """Full names of the columns in which edits count their changes."""
        return [f"{edit.name}.{counter}" for edit in self.edits for counter in edit.counters]

    def columns(self) -> dict[str, str]:
        """Full name -> dtype of all measured columns, in the order in which they are stored."""
        found = dict.fromkeys(self.counters, "int64")
        for each in self.measurers:
            found.update({f"{each.name}.{column}": dtype for column, dtype in each.columns.items()})
        return found


def build(configs: Iterable[StepConfig]) -> Steps:
    """Build the steps. Raises UsageError where a step's extra, file or function is missing, where two steps would drop
    documents for one reason, or one step has more reasons than a byte can number.
    """
    built = [_named(config.build(), config) for config in configs]
    _check_reasons(built)
    edits = [each for each in built if isinstance(each, Edit)]
    decisions = [each for each in built if isinstance(each, Decision | GlobalDecision)]
    cuts = [each for each in built if isinstance(each, Cut)]
    steps = Steps(edits, decisions, cuts, _measurers([*decisions, *cuts]))
    for step in built:
        step.check(steps.columns())
    return steps


def _named(step: Step, config: StepConfig) -> Step:
    """The reasons of a step that has a name begin with it, so that two steps of one kind share none."""
    if config.name:
        step.reasons = tuple(each if each == config.name else f"{config.name}: {each}" for each in step.reasons)
    return step


def _check_reasons(steps: Sequence[Step]) -> None:
    owners: dict[str, str] = {}
    for step in steps:
        if (count := len(step.reasons)) > MOST_REASONS:
            raise UsageError(f"step {step.name!r} has {count} reasons to drop documents, more than {MOST_REASONS}")
        for reason in step.reasons:
            if owners.setdefault(reason, step.name) != step.name:
                raise UsageError(
                    f"steps {owners[reason]!r} and {step.name!r} both drop documents as {reason!r}: "
                    "give one of them another `name`"
                )


def _measurers(steps: Sequence[MeasuringStep]) -> list[Measurer]:
    found: dict[str, Measurer] = {}
    for step in steps:
        for each in step.measurers:
            if type(found.setdefault(each.name, each)) is not type(each):
                raise UsageError(f"step {step.name!r}: {each.name!r} is measured by another step: give it another name")
    return list(found.values())
