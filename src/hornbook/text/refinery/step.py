"""The kinds of step that the refinery has: classes of which each process and task makes its own instances.

Steps come in this order. Edits change the text of one document; the steps after them see the edited text. Decisions
drop documents: by columns measured on each document alone, or by sketches of all documents. Cuts remove parts of
documents by sketches of all documents. No result depends on how documents are spread over tasks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from hornbook.text.ingest.document import Document

Columns = Mapping[str, np.ndarray]


class Measurer(Protocol):
    """Measures columns of documents. Steps whose measurers have the same name share them: each is asked once."""

    @property
    def name(self) -> str:
        """Columns are stored as `name.column`."""
        ...

    @property
    def columns(self) -> Mapping[str, str]:
        """Column -> numpy dtype: int64, float64 or bool; "str" for text, "list" for lists of uint32."""
        ...

    def measure(self, documents: Sequence[Document]) -> Columns:
        """Every column, a value per document."""
        ...


class Step:
    """A step; `config` is its entry in `text.steps`."""

    reasons: tuple[str, ...] = ()
    """Why it drops documents; an edit has at most one. `build` puts the name of a step that has one before them."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def name(self) -> str:
        """Used in columns and in the funnel."""
        return self.config.label

    def check(self, columns: Mapping[str, str]) -> None:
        """Raises UsageError where the measured columns of all steps (full name -> dtype) lack what this step needs."""


class Edit(Step):
    """Changes texts. Its changes are counted by kind, for each document, in columns `name.counter`."""

    counters: tuple[str, ...] = ()

    def edit(self, document: Document) -> tuple[str | None, tuple[int, ...]]:
        """The new text, or None to drop the document; and the number of changes for each counter."""
        raise NotImplementedError


class MeasuringStep(Step):
    """A step that looks at columns. One with columns of its own is its own measurer, unless `measurers` says others."""

    columns: Mapping[str, str] = {}
    """Its own, as `Measurer.columns`."""

    def measure(self, documents: Sequence[Document]) -> Columns:
        """Every column of its own, a value per document."""
        raise NotImplementedError

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
    """A step that decides by sketches of all documents. Beside measured columns it may need `hash` (uint64 [rows, 2])
    and `bytes`.
    """

    def sketch(self, documents: Sequence[Document], first: int) -> np.ndarray:
        """An array whose first axis is free; `first` is the row of the first document in its task.

        Batches of a task are appended to each other; all have the same dtype and the same other axes.
        """
        raise NotImplementedError


class GlobalDecision(SketchingStep):
    """Drops documents by what they have in common with others."""

    sketches: ClassVar[bool] = True
    """False where the columns it needs are enough."""

    def decide_all(self, corpus: CorpusView) -> np.ndarray:
        """uint8 [rows]: 0 keeps, k drops for `reasons[k - 1]`. The values of rows that are not alive are ignored."""
        raise NotImplementedError


class Cut(SketchingStep):
    """Removes parts of documents by what they have in common with others."""

    def cuts(self, corpus: CorpusView) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, start, end), int64, sorted, without overlaps: bytes of the UTF-8 text of rows that are alive."""
        raise NotImplementedError
