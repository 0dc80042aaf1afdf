"""Columns of the steps of a run, read as metrics.jsonl grows.

A file of up to `WHOLE_BYTES` is read once, and then only what was appended. Of a longer one some lines spread evenly
over the file are read, so that a run of any length opens at once; a part of it is read whole when a person zooms in.
"""

import math
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence
from operator import lt
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.files.filesystem import exists
from hornbook.studio.live.metric_lines import KEYS, end_of_lines, find_step, record_of, sampled_lines
from hornbook.studio.series import Numbers, thin

WHOLE_BYTES = 64 << 20
SAMPLES = 8_000
"""Lines that are read of a longer file."""
BLOCK = 1 << 20
"""Bytes of lines that are records at once."""


class StepColumns:
    """The steps in force of one run; NaN where a step recorded nothing."""

    def __init__(self, path: Path, whole_bytes: int = WHOLE_BYTES) -> None:
        self._path, self._whole_bytes = path, whole_bytes
        self._clear()

    def _clear(self) -> None:
        self.offset = 0
        """Bytes of the file that are known."""
        self.every = 1
        """One line in so many of the file was read."""
        self.damaged = 0
        """Lines that are no records."""
        self._steps, self._attempts = array("q"), array("q")
        self._columns = {key: array("d") for key in KEYS}

    def __len__(self) -> int:
        return len(self._steps)

    @property
    def steps(self) -> Numbers:
        """float64 [points], ascending."""
        return np.array(self._steps, np.float64)

    def column(self, key: str) -> Numbers:
        """float64 [points]."""
        return np.array(self._columns[key], np.float64)

    def update(self) -> None:
        """Read what was appended. A file that became shorter is read again. Raises OSError."""
        if not exists(self._path):
            return
        with self._path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            if size < self.offset:
                self._clear()
            if size - self.offset > self._whole_bytes:
                lines = sampled_lines(file, self.offset, size, SAMPLES)
                length = sum(map(len, lines)) / max(len(lines), 1)
                self.every = max(1, round((size - self.offset) / max(length, 1) / max(len(lines), 1)))
                self.offset = end_of_lines(file, size)
                self._add_lines(lines)
                return
            file.seek(self.offset)
            while lines := file.readlines(BLOCK):  # records of a whole file would take ten times its bytes
                whole = lines if lines[-1].endswith(b"\n") else lines[:-1]
                self._add_lines(whole)
                self.offset += sum(map(len, whole))
                if whole is not lines:
                    return

    def _add_lines(self, lines: Sequence[bytes]) -> None:
        records = [record for line in lines if (record := record_of(line)) is not None]
        self.damaged += len(lines) - len(records)
        steps = [record["step"] for record in records]
        if all(map(lt, [self._steps[-1] if self._steps else -1, *steps], steps)):  # it never went back
            self._append(records)
            return
        for record in records:
            while self._attempts and self._attempts[-1] < record["attempt"] and self._steps[-1] >= record["step"]:
                for column in (self._steps, self._attempts, *self._columns.values()):
                    column.pop()
            self._append([record])

    def _append(self, records: Sequence[Mapping[str, Any]]) -> None:
        self._steps.extend(record["step"] for record in records)
        self._attempts.extend(record["attempt"] for record in records)
        for key, column in self._columns.items():
            column.frombytes(_numbers([record.get(key) for record in records]).tobytes())

    def detail(self, low: float, high: float) -> "StepColumns":
        """The steps between two steps, every one of them if they fit into memory; self where nothing was left out."""
        if self.every == 1:
            return self
        found = StepColumns(self._path, self._whole_bytes)
        with self._path.open("rb") as file:
            begin = find_step(file, self.offset, low)
            end = find_step(file, self.offset, high + 1)
            if end - begin > self._whole_bytes:
                lines = sampled_lines(file, begin, end, SAMPLES)
                found.every = max(1, self.every * (end - begin) // max(self.offset, 1))
            else:
                file.seek(begin)
                lines = file.read(end - begin).splitlines()
        found._add_lines(lines)
        return found

    def curves(self, keys: Iterable[str], low: float, high: float, columns: int) -> dict[str, Any]:
        """Key -> {"x", "y"} between two steps: the minimum and the maximum in each of `columns` parts."""
        steps = self.steps
        first, last = np.searchsorted(steps, (low, high + 0.5))
        inside = slice(max(int(first) - 1, 0), int(last) + 1)  # a line goes on to the edges of the picture
        drawn = {}
        for key in keys:
            x, y = steps[inside], self.column(key)[inside]
            kept = thin(x, y, columns, low, high) if len(x) else np.arange(0)
            if np.isfinite(y[kept]).any():
                values = [value if math.isfinite(value) else None for value in y[kept].tolist()]
                drawn[key] = {"x": x[kept].astype(int).tolist(), "y": values}
        return drawn


def _numbers(values: list[Any]) -> Numbers:
    """float64 of JSON values; NaN for what is no number."""
    try:
        return np.array(values, np.float64)  # None is NaN
    except (TypeError, ValueError):
        return np.array([each if isinstance(each, int | float) else math.nan for each in values], np.float64)
