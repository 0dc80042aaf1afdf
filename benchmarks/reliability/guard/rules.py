"""The guard, and what others do, as rules of when a step is skipped.

Those of others are written from their descriptions: OLMo-core's SkipStepAdamW (128 steps, six standard deviations,
outliers stay in the window), llm-foundry's loss spike callback (twice the running mean, four steps in a row),
Megatron-LM's check (ten times the largest of the first 100).
"""

import math
import statistics
from collections import deque
from typing import Protocol

from hornbook.run.guard.guard import Guard, Seen
from hornbook.settings.training import GuardConfig


class Rule(Protocol):
    """A rule of when a step is skipped."""

    def fires(self, loss: float, norm: float) -> bool:
        """Whether it does at this step; the step is taken in."""
        ...


class Ours:
    """The guard."""

    def __init__(self, steps: int = 100_000) -> None:
        self.guard, self._step = Guard(GuardConfig(), steps=steps, warmup=0), 0
        self.found: list[tuple[int, str]] = []

    def fires(self, loss: float, norm: float) -> bool:
        self._step += 1
        limits = self.guard.limits(self._step)
        refused = limits is not None and (norm > limits.norm or loss > limits.loss)
        seen = Seen(self._step, loss, norm, not refused, int(refused), clock=self._step - 1, rows=1)
        self.found += [(self._step, each.rule) for each in self.guard.judge(seen)]
        if self.guard.pending is not None:
            self.found.append((self._step, "rollback"))
            self.guard.let_go()
        return refused


class MeanDeviations:
    """Six standard deviations over the mean of the last 128 steps, whatever they were."""

    def __init__(self, window: int = 128, sigmas: float = 6.0) -> None:
        self._sigmas, self._size = sigmas, window
        self._kept = [_Moments(window), _Moments(window)]

    def limit(self, number: int) -> float:
        """Of the loss (0) or the norm (1) of the next step; infinite before the window is full."""
        kept = self._kept[number]
        if len(kept.values) < self._size:
            return math.inf
        return kept.mean + self._sigmas * kept.deviation

    def fires(self, loss: float, norm: float) -> bool:
        beyond = loss > self.limit(0) or norm > self.limit(1)
        for kept, value in zip(self._kept, (loss, norm), strict=True):
            kept.add(value)
        return beyond


class _Moments:
    """Sums over the last values: a million steps are too many for sums over the window at each."""

    def __init__(self, window: int) -> None:
        self.values, self._window, self._sum, self._squares = deque[float](), window, 0.0, 0.0
        self._origin = 0.0

    def add(self, value: float) -> None:
        if not self.values:
            self._origin = value  # squares of distances from near the mean lose nothing
        self.values.append(value)
        self._count(value, 1)
        if len(self.values) > self._window:
            self._count(self.values.popleft(), -1)

    def _count(self, value: float, sign: int) -> None:
        away = value - self._origin
        self._sum += sign * away
        self._squares += sign * away * away

    @property
    def mean(self) -> float:
        return self._origin + self._sum / len(self.values)

    @property
    def deviation(self) -> float:
        count = len(self.values)
        return math.sqrt(max(self._squares - self._sum**2 / count, 0.0) / (count - 1))


class TwiceTheMean:
    """A loss of twice the mean of the last 500, four times in a row."""

    def __init__(self) -> None:
        self._losses, self._high = deque[float](maxlen=500), 0

    def fires(self, loss: float, norm: float) -> bool:  # noqa: ARG002
        self._high = self._high + 1 if len(self._losses) > 100 and loss > 2 * statistics.fmean(self._losses) else 0
        self._losses.append(loss)
        return self._high >= 4


class TenTimesTheFirst:
    """Ten times the largest gradient norm of the first 100 steps."""

    def __init__(self) -> None:
        self._largest, self._steps = 0.0, 0

    def fires(self, loss: float, norm: float) -> bool:  # noqa: ARG002
        self._steps += 1
        if self._steps <= 100:
            self._largest = max(self._largest, norm)
            return False
        return norm > 10 * self._largest
