"""Keeps a run within `train.seconds`: predicts its end from its own steps, and shortens it where that is too late.

These decisions are not reproducible and need not be: each is written to the ledger, and from there on belongs to the
run like its recipe.
"""

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.ledger.step_report import Step
from hornbook.run.ledger.token_costs import EVEN, Work
from hornbook.run.ledger.training_length import TrainingLength

WINDOW = 20
"""Number of newest steps whose mean predicts the next ones."""
MEASURED_STEPS = 3
"""Steps to measure after the first, which compiles; fewer are enough once half of the time is gone."""
MARGIN = 0.05
"""Share of the time left that a shortened run leaves free, so that small noise does not shorten it again."""


class Timekeeper:
    """Measures one attempt of a run. All times are in seconds."""

    def __init__(
        self, limit: float, spent: float, clock: Callable[[], float] = time.monotonic, work: Work = EVEN
    ) -> None:
        """`limit`: time for the whole run; `spent`: by earlier attempts; `work`: what its tokens cost."""
        self._limit, self._clock, self._work = limit, clock, work
        self._now = clock()
        self._zero = self._now - spent
        self._half = (spent + limit) / 2
        self._recent = deque[tuple[float, float]](maxlen=WINDOW)
        """(seconds, work) of the newest steps."""
        self._steps, self._done = 0, 0.0
        self._beside = 0.0
        """Time between steps: observers, evaluations, saves."""
        self._longest = 0.0
        """The longest time between two steps, taken for the time after the last step."""

    @property
    def elapsed(self) -> float:
        """Time in the run at the end of the newest step."""
        return self._now - self._zero

    def tokens_in_time(self, step: Step, length: TrainingLength) -> int:
        """Length in tokens with which the run ends in time. Call it once a step, its observers and save are done."""
        self._measure(step)
        measured, elapsed = self._steps - 1, self.elapsed
        enough = measured >= MEASURED_STEPS or elapsed >= self._limit or (measured > 0 and elapsed > self._half)
        if not enough or self.expected(step.tokens, length) <= self._limit:
            return length.tokens
        left = self._limit - self.elapsed - self._longest
        work = (1 - MARGIN) * left / self._seconds_per_work if left > 0 else 0.0
        tokens = self._work.tokens(step.tokens, work)
        return length.end_within(step.tokens, tokens)

    def expected(self, consumed: int, length: TrainingLength) -> float:
        """Predicted time of the whole run at its present speed."""
        left = self._work.between(consumed, length.tokens)
        return self.elapsed + left * self._seconds_per_work + self._longest

    def evidence(self, step: Step, length: TrainingLength) -> dict[str, Any]:
        """For the ledger, where the run is shortened."""
        return {"elapsed": self.elapsed, "expected": self.expected(step.tokens, length), "reason": "train.seconds"}

    @property
    def _seconds_per_work(self) -> float:
        seconds, work = (sum(column) for column in zip(*self._recent, strict=True))
        return seconds / work + self._beside / self._done

    def _measure(self, step: Step) -> None:
        before, self._now = self._now, self._clock()
        beside = max(self._now - before - step.seconds, 0.0)
        self._beside, self._longest = self._beside + beside, max(self._longest, beside)
        if self._steps == 1:
            self._recent.clear()  # the first step compiles
        work = self._work.between(step.tokens - step.step_tokens, step.tokens)
        self._recent.append((step.seconds, work))
        self._steps, self._done = self._steps + 1, self._done + work


def seconds_spent(run: RunDir) -> float:
    """Time of all attempts of a run so far, each from its start in the ledger to its last record."""
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    for path in (run.events, run.metrics):
        for record in read_records(path) if path.exists() else ():
            attempt, at = record["attempt"], record.get("time", 0.0)
            if record.get("kind") in ("start", "resume"):
                begun[attempt] = at
            ended[attempt] = max(ended.get(attempt, at), at)
    return sum(max(ended[attempt] - at, 0.0) for attempt, at in begun.items())
