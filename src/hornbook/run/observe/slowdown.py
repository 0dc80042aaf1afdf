"""Notices that throughput fell lastingly, and names what takes the time now. A pure function of the recorded times.

A window is some steps of one batch size. The run's own median over earlier windows is what counts as usual: a
throughput below it by the factor `log.slowdown` in `LASTING` windows in a row is a slowdown; as many above end it.
"""

import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

BASELINE = 4
"""Windows before anything is judged."""
LASTING = 3
REMEMBERED = 200
"""Windows of which the median is taken."""
GROUPS = {
    "data": ("data",),
    "forward and backward": ("forward", "backward"),
    "communication": ("communication",),
    "optimizer": ("optimizer",),
    "host gap": ("host",),
}
"""What a slowdown can come from: the phases of a step, those of computation together."""
_HINTS = {
    "data": "the loader is late; `hornbook bench RECIPE --loader` measures it alone",
    "forward and backward": "the device computes more slowly: something else uses it, or it is throttled",
    "communication": "the network is slower, or this rank waits for another one",
    "optimizer": "clipping and the update take longer",
    "host gap": "the host is busy between the parts of a step",
}


@dataclass(frozen=True)
class Window:
    """Some steps in a row; where their sizes differ, `SlowdownDetector` takes it for another batch size."""

    first: int
    """Number of the first step."""
    steps: int
    tokens: int
    seconds: float
    phases: Mapping[str, float]
    """Seconds by phase, `host` among them; they add up to `seconds`."""
    slow_rank: str = ""
    """The rank that keeps the others waiting, and by how much; "" where all are alike."""

    @property
    def rate(self) -> float:
        """Tokens/s."""
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Slowdown:
    """What happened, for the console and the ledger."""

    event: ClassVar[str] = "throughput"
    since: int
    """First step of the first slow window; of a recovery, of the first fast one."""
    usual: float
    """Median tokens/s before."""
    now: float
    ended: bool = False
    cause: str = ""
    """One of `GROUPS`."""
    before_share: float = 0.0
    """Share of the cause in the usual step."""
    share: float = 0.0
    slow_rank: str = ""

    def __str__(self) -> str:
        rates = f"{self.now:,.0f} tokens/s since step {self.since:,}, {self.usual:,.0f} usually"
        if self.ended:
            return f"throughput is back: {rates}"
        shares = f"{self.cause} {100 * self.before_share:.0f} % -> {100 * self.share:.0f} % of the step"
        return f"throughput fell: {rates}; {shares} ({self.slow_rank or _HINTS[self.cause]})"


@dataclass
class SlowdownDetector:
    """Judges one window after the other."""

    factor: float
    """Above 1: the fall that counts."""
    _usual: deque[Window] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    _run: list[Window] = field(default_factory=list)
    """The newest windows in a row that contradict the present state."""
    _slow: bool = False

    def judge(self, window: Window) -> Slowdown | None:
        """A slowdown or its end, where this window settles one."""
        if self._usual and window.tokens / window.steps != self._usual[-1].tokens / self._usual[-1].steps:
            self._usual.clear()  # another batch size has another throughput
            self._run, self._slow = [], False
        if len(self._usual) < BASELINE:
            self._usual.append(window)
            return None
        usual = statistics.median(each.rate for each in self._usual)
        is_slow = window.rate * self.factor < usual
        if is_slow == self._slow:
            self._run = []
            if not is_slow:
                self._usual.append(window)
            return None
        self._run.append(window)
        if len(self._run) < LASTING:
            return None
        found, self._run, self._slow = self._describe(usual, self._run), [], is_slow
        return found

    def _describe(self, usual: float, run: list[Window]) -> Slowdown:
        now = sum(each.tokens for each in run) / sum(each.seconds for each in run)
        if self._slow:
            return Slowdown(run[0].first, usual, now, ended=True)
        before, after = _seconds_by_group(self._usual), _seconds_by_group(run)
        cause = max(GROUPS, key=lambda group: after[group] - before[group])
        shares = (each[cause] / sum(each.values()) for each in (before, after))
        return Slowdown(run[0].first, usual, now, False, cause, *shares, slow_rank=run[-1].slow_rank)


def _seconds_by_group(intervals: deque[Window] | list[Window]) -> dict[str, float]:
    """Median over windows of the seconds per step, by group."""
    return {
        group: statistics.median(sum(each.phases[name] for name in names) / each.steps for each in intervals)
        for group, names in GROUPS.items()
    }
