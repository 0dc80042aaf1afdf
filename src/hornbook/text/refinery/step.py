"""What a step of the refinery is: four kinds of class, one instance per process and task.

Steps stand in a list in three stretches. Edits change the text of one document; what comes after them sees the edited
text. Decisions drop documents: by columns that are measured on each document alone, or by sketches of all of them.
Cuts remove parts of documents by sketches of all of them. Nothing depends on how documents are spread over tasks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from hornbook.text.ingest.document import Document

Columns = Mapping[str, np.ndarray]


class Measurer(Protocol):
    """Measures columns of documents. Steps whose measurers have the same name share them: it is asked once."""

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
    """A step as it works; `config` is the entry of the list."""

    def __init__(self, config: Any) -> None:
        self.config = config

    @property
    def name(self) -> str:
        """In columns and in the funnel."""
        return self.config.label

    def check(self, columns: Mapping[str, str]) -> None:
        """Raises UsageError where the columns that a recipe's steps measure (name -> dtype) are not what it needs."""


class Edit(Step):
    """Changes texts. What it changed is counted by kind, for each document, in columns `name.counter`."""

    counters: tuple[str, ...] = ()
    reason: str = ""
    """Why a document is dropped for which `edit` gives None."""

    def edit(self, document: Document) -> tuple[str | None, tuple[int, ...]]:
        """The new text, or None to drop the document, and how often each counter's kind was changed."""
        raise NotImplementedError


class Decision(Step):
    """Drops documents by their columns alone, so that thresholds can be moved without reading any text again."""

    reasons: tuple[str, ...] = ()
    """Its own: `table.build` puts the name of a step that has one before them."""
    measurers: tuple[Measurer, ...] = ()
    """What must be measured for it; `decide` gets those columns under their full names."""
    needs: tuple[str, ...] = ()
    """Full names of the columns that `decide` looks at."""
    fixed: tuple[str, ...] = ()
    """Numbers of the configuration that are part of measuring, though no name of a column tells: no thresholds."""

    def decide(self, columns: Columns) -> np.ndarray:
        """uint8 [rows]: 0 keeps, k drops for `reasons[k - 1]`."""
        raise NotImplementedError

    def sweep(self, columns: Columns, key: str) -> Callable[[Any], np.ndarray]:
        """What stays, bool [rows], as a function of one threshold of the configuration."""
        return lambda value: type(self)(self.config.model_copy(update={key: value})).decide(columns) == 0


@dataclass(frozen=True, slots=True)
class CorpusView:
    """What a global step sees: all documents in the order (task, row)."""

    alive: np.ndarray
    """bool [rows]: not dropped by an earlier step."""
    columns: Columns
    """Those it needs, for all rows: numbers (8 bytes a row) and hashes (16), in memory while the step judges."""
    sketches: Sequence[np.ndarray]
    """Of each task what `sketch` gave for its batches, one after the other; on disk, mapped into memory."""
    firsts: Sequence[int]
    """The row of each task's first document."""
    scratch: Path
    """An empty folder for files."""
    stream: Callable[[str], Iterator[np.ndarray]]
    """A column task by task, read anew each time: for steps that do not want all of it in memory."""


class Sketched(Step):
    """A step that judges by sketches of all documents."""

    needs: tuple[str, ...] = ()
    """Columns it looks at: `hash` [rows, 2] uint64, `bytes`, or measured ones by their full names."""
    measurers: tuple[Measurer, ...] = ()

    def sketch(self, documents: Sequence[Document], first: int) -> np.ndarray:
        """An array whose first axis is free; `first` is the row of the first document in its task.

        Batches of a task are appended to each other; all have the same dtype and the same other axes.
        """
        raise NotImplementedError


class GlobalDecision(Sketched):
    """Drops documents by what they have in common with others."""

    reasons: tuple[str, ...] = ()
    sketches: ClassVar[bool] = True
    """False where the columns it needs are enough."""

    def decide_all(self, corpus: CorpusView) -> np.ndarray:
        """uint8 [rows]: 0 keeps, k drops for `reasons[k - 1]`. What it says of rows that are not alive is ignored."""
        raise NotImplementedError


class Cut(Sketched):
    """Removes parts of documents by what they have in common with others."""

    def cuts(self, corpus: CorpusView) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(row, start, end), int64, sorted: bytes of the UTF-8 text of rows that are alive, which do not overlap."""
        raise NotImplementedError
