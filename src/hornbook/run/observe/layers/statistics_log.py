"""Writes the statistics of layers: RUN/statistics.jsonl."""

from pathlib import Path
from typing import Self

from hornbook.files.journal import Appender
from hornbook.run.state import State
from hornbook.run.step_report import Step


class StatisticsLog:
    """Observer: a line for each measured step. Ranks other than 0 have no path, and write nothing."""

    def __init__(self, state: State, path: Path | None) -> None:
        self._state, self._path = state, path
        self._appender: Appender | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._appender is not None:
            self._appender.close()

    def __call__(self, step: Step) -> None:
        layers = self._state.layers
        if layers is None or not layers.is_due(step.step):
            return
        found = layers.measure(self._state.loader, self._state.micro_batch)
        if self._path is not None:
            self._appender = self._appender or Appender(self._path)
            self._appender.append({"attempt": step.attempt, "step": step.step, "tokens": step.tokens} | found.record())
