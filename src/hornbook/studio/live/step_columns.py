"""Columns of the steps of a run, read as metrics.jsonl grows.

A file of up to `WHOLE_BYTES` is read once, and then only what was appended. Of a longer one some lines spread evenly
over the file are read, so that a run of any length opens at once; a part of it is read whole when a person zooms in.
"""

import json
import math
import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.files.filesystem import exists
from hornbook.studio.series import Numbers, thin

KEYS = ("tokens", "loss", "gradient_norm", "lr", "tokens_per_second", "seconds", "data_seconds")
WHOLE_BYTES = 64 << 20
SAMPLES = 8_000
"""Lines that are read of a longer file."""
_LINE = 1 << 14
"""Bytes that are read to find one line."""


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
                self.offset = _end_of_lines(file, size)
            else:
                file.seek(self.offset)
                data = file.read(size - self.offset)
                data = data[: data.rfind(b"\n") + 1]
                lines, self.offset = data.splitlines(), self.offset + len(data)
        for line in lines:
            self._add(line)

    def _add(self, line: bytes) -> None:
        record = record_of(line)
        if record is None:
            self.damaged += 1
            return
        step, attempt = record["step"], record["attempt"]
        while self._attempts and self._attempts[-1] < attempt and self._steps[-1] >= step:  # it went back
            for column in (self._steps, self._attempts, *self._columns.values()):
                column.pop()
        self._steps.append(step)
        self._attempts.append(attempt)
        for key, column in self._columns.items():
            column.append(_number(record.get(key)))

    def detail(self, low: float, high: float) -> "StepColumns":
        """The steps between two steps, every one of them if they fit into memory; self where nothing was left out."""
        if self.every == 1:
            return self
        found = StepColumns(self._path, self._whole_bytes)
        with self._path.open("rb") as file:
            begin = _find_step(file, self.offset, low)
            end = _find_step(file, self.offset, high + 1)
            if end - begin > self._whole_bytes:
                lines = sampled_lines(file, begin, end, SAMPLES)
                found.every = max(1, self.every * (end - begin) // max(self.offset, 1))
            else:
                file.seek(begin)
                lines = file.read(end - begin).splitlines()
        for line in lines:
            found._add(line)
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


def record_of(line: bytes) -> dict[str, Any] | None:
    """A record of a step; None where a line is damaged."""
    try:
        record = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(record, dict) and all(type(record.get(key)) is int for key in ("step", "attempt"))
    return record if whole else None


def sampled_lines(file: Any, begin: int, end: int, count: int) -> list[bytes]:
    """Whole lines that begin near `count` places spread evenly over the bytes [begin, end), and the last one."""
    lines, known = list[bytes](), begin - 1
    places = (begin + (end - begin) * number // count for number in range(count))
    firsts = (next(_lines_at(file, place, end), None) for place in places)
    last = list(_lines_at(file, max(begin, _end_of_lines(file, end) - _LINE // 2), end))[-1:]
    for found in (*firsts, *last):
        if found is not None and found[0] > known:
            known = found[0]
            lines.append(found[1])
    return lines


def _lines_at(file: Any, place: int, end: int) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of the whole lines in a block that begins at an offset, the first line feed before it aside."""
    begin = max(place - 1, 0)
    file.seek(begin)
    data = file.read(min(_LINE, end - begin))
    at = 0 if begin == 0 and place == 0 else data.find(b"\n") + 1
    while at or place == 0:
        stop = data.find(b"\n", at)
        if stop < 0:
            return
        yield begin + at, data[at:stop]
        at = stop + 1


def _end_of_lines(file: Any, size: int) -> int:
    """Offset after the last line feed."""
    begin = max(0, size - _LINE)
    file.seek(begin)
    return begin + file.read(size - begin).rfind(b"\n") + 1


def _find_step(file: Any, size: int, step: float) -> int:
    """Offset of the first line whose step is at least `step`, by bisection; of a run that went back, nearly so."""
    low, high = 0, size
    while high - low > _LINE // 2:
        middle = (low + high) // 2
        start, line = next(_lines_at(file, middle, size), (high, b""))
        record = record_of(line)
        if start >= high or record is None or record["step"] >= step:
            high = middle
        else:
            low = start
    for start, line in _lines_at(file, low, size):
        record = record_of(line)
        if record is not None and record["step"] >= step:
            return start
    return high


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan
