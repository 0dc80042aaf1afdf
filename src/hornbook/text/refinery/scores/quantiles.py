"""Quantiles of a measured column, over all documents or within groups such as languages."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.text.refinery.step import CorpusView, GlobalDecision


class Quantiles(GlobalDecision):
    """Drops documents below the low quantile or above the high one, of those that no earlier step dropped."""

    sketches = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.reasons = (f"low {config.column}", f"high {config.column}")
        self.needs = (config.column,)

    def check(self, columns: Mapping[str, str]) -> None:
        """Raises UsageError where a column is not measured, or holds no numbers."""
        known = [name for name, kind in columns.items() if kind != "list"]
        if missing := [name for name in (*self.needs, self.config.by) if name and name not in known]:
            there = ", ".join(known) or "none"
            raise UsageError(f"step {self.name!r}: no step measures the column {missing[0]!r}; there are {there}")
        if (kind := columns[self.config.column]) == "str":
            raise UsageError(f"step {self.name!r}: {self.config.column} is {kind}: quantiles are of numbers")

    def decide_all(self, corpus: CorpusView) -> np.ndarray:
        """1 below, 2 above."""
        values = corpus.columns[self.config.column].astype(np.float64, copy=False)
        found = np.zeros(len(values), np.uint8)
        for rows in _groups(corpus, self.config.by):
            low, high = np.quantile(values[rows], (self.config.low, self.config.high))
            found[rows] = np.where(values[rows] < low, 1, np.where(values[rows] > high, 2, 0))
        return found


def _groups(corpus: CorpusView, by: str) -> list[np.ndarray]:
    """Rows that are alive, int64 [rows] for each value of the column; one group without a column."""
    rows = np.flatnonzero(corpus.alive)
    if not by or not len(rows):
        return [rows] if len(rows) else []
    numbers = _numbers(corpus, by)[rows]
    order = np.argsort(numbers, kind="stable")
    return np.split(rows[order], np.flatnonzero(np.diff(numbers[order])) + 1)


def _numbers(corpus: CorpusView, by: str) -> np.ndarray:
    """int32 [rows]: a number for the value of each document; only one task's values are held as text."""
    found, known = np.zeros(len(corpus.alive), np.int32), {}
    for first, part in zip(corpus.firsts, corpus.stream(by), strict=True):
        names, places = np.unique(part.astype(str), return_inverse=True)
        numbers = np.array([known.setdefault(name, len(known)) for name in names.tolist()], np.int32)
        found[first : first + len(part)] = numbers[places]
    return found
