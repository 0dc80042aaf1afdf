"""Detectors: pure arithmetic over losses and gradient norms of past steps, from which every rank finds the same.

| rule | a step or a run that | threshold |
|---|---|---|
| D0 | is not finite | - |
| D1a | has a large gradient | norm z > 6 |
| D1b | is far out | norm z > 12, or loss z > 8 (6 behind a step refused for it), or as D1c |
| D1c | spikes | loss z > 6, and norm z > 8 within the last 4 steps |
| level | has a new usual gradient norm | refused for it 8 times in a row, and the loss is as it was |
| D2 | does not come back from a spike | median of 16 losses 3 deviations too high for 64 steps, without a fall |
| D3 | rises slowly | cumulative sum over losses of 500 to 1,500 steps before; held-out text confirms it twice |
| D4 | cannot be represented | three overflows in a row once the fp16 scale was found, or a scale of 1 |

z counts robust deviations of the loss, or of the logarithm of the gradient norm, from the median
(`robust_statistics.py`). The thresholds were measured on recorded noise of real runs, whose tails are heavy.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hornbook.run.guard.robust_statistics import RobustWindow, middle_of, theil_sen

SPIKE_LOSS_Z, SPIKE_NORM_Z, RUN_UP = 6.0, 8.0, 4
"""A spike: the loss now, and the gradient norm within so many steps."""
LASTING = 16
"""Losses whose median says whether a spike is over."""
LARGE = 1e30
"""In the place of a loss that is not finite."""
ABOVE_Z = 3.0
"""Deviations by which it is not."""
DRIFT_NEAR, DRIFT_FAR = 512, 1536
"""Steps back between which lie the losses that a slow rise is compared with."""
DRIFT_SLACK, DRIFT_CUT, DRIFT_LIMIT = 0.25, 4.0, 40.0
"""Page's cumulative sum (1954): what every step may exceed, the most that one counts, and where it is a finding."""
PROBES, FIRST_PROBES = 16, 8
"""Losses of held-out text that the next is compared with, and the fewest."""
PROBE_Z, CONFIRMED = 6.0, 2
"""Distance of a loss of held-out text that confirms a slow rise, so many times in a row."""
GROWTH_STEPS = 2000
"""Steps without overflow after which the fp16 scale has been found."""
OVERFLOWS = 3
"""Overflows in a row that say that no scale fits."""


@dataclass
class SpikeWatch:
    """A spike, and what followed."""

    step: int
    onset: int
    """The first step that stood out."""
    middle: float
    """Of the losses before."""
    deviation: float
    losses: list[float] = field(default_factory=list)
    """Since then, the newest last."""
    high: int = 0
    """Steps in a row in which their median was too high."""

    def add(self, loss: float, lasting: int) -> bool | None:
        """True: the run does not come back; None: it did; False: not known yet.

        lasting: steps for which the loss must stay high.
        """
        self.losses = [*self.losses, min(loss, LARGE) if math.isfinite(loss) else LARGE][-max(lasting, LASTING) :]
        if len(self.losses) < LASTING:
            return False
        if not middle_of(sorted(self.losses[-LASTING:])) > self.middle + ABOVE_Z * self.deviation:
            return None
        self.high += 1
        return self.high >= lasting and theil_sen(self.losses) >= 0


class Drift:
    """A slow rise of the training loss."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        """Losses that are not old enough to compare with, the oldest first."""
        self._old = RobustWindow(DRIFT_FAR - DRIFT_NEAR)
        self.sum = 0.0

    def add(self, loss: float, *, least: int) -> bool:
        """Whether the sum of what losses exceed the older ones by is a finding with this one; it begins anew then.

        least: older losses from which on it judges.
        """
        self._recent.append(loss)
        if len(self._recent) > DRIFT_NEAR:
            self._old.add(self._recent.popleft())
        if len(self._old) < least:
            return False
        z = min(max(self._old.z(loss), -DRIFT_CUT), DRIFT_CUT)
        self.sum = max(0.0, self.sum + z - DRIFT_SLACK)
        if self.sum <= DRIFT_LIMIT:
            return False
        self.sum = 0.0
        return True

    def state(self) -> dict[str, Any]:
        """What `load` takes."""
        return {"recent": list(self._recent), "old": self._old.state(), "sum": self.sum}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state()` returned."""
        self._recent, self.sum = deque(state["recent"]), state["sum"]
        self._old.load(state["old"])


@dataclass
class Probes:
    """Losses of one held-out batch along the run."""

    losses: list[float] = field(default_factory=list)
    good_step: int = 0
    """Of the newest one that did not stand out."""
    high: int = 0
    """How many stood out in a row."""

    def add(self, step: int, loss: float) -> tuple[float, bool]:
        """(its z, whether it confirms that the run diverges)."""
        window = RobustWindow(PROBES)
        for each in self.losses:
            window.add(each)
        judges = len(self.losses) >= FIRST_PROBES or not math.isfinite(loss)
        z = window.z(loss) if judges else 0.0
        if z > PROBE_Z:
            self.high += 1
        else:
            self.high, self.good_step = 0, step
            self.losses = [*self.losses, loss][-PROBES:]
        return z, self.high >= CONFIRMED


@dataclass
class Overflows:
    """Steps that fp16 could not represent."""

    good: int = 0
    """Applied steps in a row."""
    found: bool = False
    """The scale has been found."""
    in_a_row: int = 0

    def add(self, *, overflowed: bool, scale: float) -> bool:
        """Whether no scale fits any more."""
        if not overflowed:
            self.good, self.in_a_row = self.good + 1, 0
            self.found = self.found or self.good >= GROWTH_STEPS
            return False
        self.good, self.in_a_row = 0, self.in_a_row + 1
        return (self.found or scale <= 1.0) and self.in_a_row >= OVERFLOWS
