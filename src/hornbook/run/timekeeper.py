"""Whether a run will end in its time (`train.seconds`), by its own steps, and how long it may be if not.

Nothing here is reproducible, and nothing needs to be: what is decided is written to the ledger, and from there on it
is part of the run like its recipe.
"""

import time
from collections import deque
from collections.abc import Callable

from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.run.horizon import Horizon
from hornbook.run.step_report import Step

WINDOW = 20
"""Newest steps whose mean says how fast the next ones will be."""
MEASURED_STEPS = 3
"""Of a start, behind its first step, which compiles: fewer say nothing, unless half of its time is gone."""
MARGIN = 0.05
"""Share of the time left that a shortened run leaves free, so that a little noise does not shorten it again."""


class Timekeeper:
    """Measures one attempt of a run. All times are in seconds."""

    def __init__(self, limit: float, spent: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`limit`: of the whole run; `spent`: by the attempts before."""
        self._limit, self._clock = limit, clock
        self._now = clock()
        self._zero = self._now - spent
        self._half = (spent + limit) / 2
        self._recent = deque[tuple[float, int]](maxlen=WINDOW)
        self._steps = self._tokens = 0
        self._beside = 0.0
        """Spent between steps: observers, evaluations, saves."""
        self._longest = 0.0
        """The longest time between two steps: the end of the run will take as long."""

    @property
    def elapsed(self) -> float:
        """Spent in the run when the newest step had ended."""
        return self._now - self._zero

    def length(self, step: Step, horizon: Horizon) -> int:
        """Tokens of the whole run so that it ends in its time; `horizon.tokens` where it does so as it is.

        Call it after every step, once all that follows a step is done.
        """
        self._measure(step)
        if not self._knows_enough() or self.expected(step.tokens, horizon) <= self._limit:
            return horizon.tokens
        left = self._limit - self.elapsed - self._longest
        tokens = (1 - MARGIN) * left / self._seconds_per_token if left > 0 else 0.0
        return horizon.end_within(step.tokens, tokens)

    def expected(self, consumed: int, horizon: Horizon) -> float:
        """Length of the whole run if it goes on as it does."""
        return self.elapsed + (horizon.tokens - consumed) * self._seconds_per_token + self._longest

    @property
    def _seconds_per_token(self) -> float:
        seconds, tokens = (sum(column) for column in zip(*self._recent, strict=True))
        return seconds / tokens + self._beside / self._tokens

    def _measure(self, step: Step) -> None:
        before, self._now = self._now, self._clock()
        beside = max(self._now - before - step.seconds, 0.0)
        self._beside, self._longest = self._beside + beside, max(self._longest, beside)
        if self._steps == 1:
            self._recent.clear()  # the first step is not like the others
        self._recent.append((step.seconds, step.step_tokens))
        self._steps, self._tokens = self._steps + 1, self._tokens + step.step_tokens

    def _knows_enough(self) -> bool:
        measured = self._steps - 1
        if measured >= MEASURED_STEPS or self.elapsed >= self._limit:
            return True
        return measured > 0 and self.elapsed > self._half


def seconds_spent(run: RunDir) -> float:
    """Time in all attempts of a run so far: of each, from its start in the ledger to the last that it wrote."""
    begun: dict[int, float] = {}
    ended: dict[int, float] = {}
    for path in (run.events, run.metrics):
        for record, _ in read_records(path) if path.exists() else ():
            attempt, at = record["attempt"], record.get("time", 0.0)
            if record.get("kind") in ("start", "resume"):
                begun[attempt] = at
            ended[attempt] = max(ended.get(attempt, at), at)
    return sum(max(ended[attempt] - at, 0.0) for attempt, at in begun.items())
