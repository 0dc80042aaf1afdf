"""An axis: from values to places in a picture, and where its ticks stand."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_ROOM = 0.04
"""Share of an axis that is left free at either end."""
_OUTLIER = 4.0
"""An axis is cut where its greatest value is so many times as far from the least as 99 % of the values."""


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` over places from `start` to `end` (which may be the lesser one)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, value: float) -> float:
        """Where a value stands; values beyond the axis at its end."""
        low, high, value = (_log(each) if self.log else each for each in (self.low, self.high, value))
        share = (value - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """Round values on the axis, `most` of them or fewer (a logarithmic one may have one more)."""
        if self.log:
            return self._log_ticks(most)
        return self._even_ticks(most)

    def _even_ticks(self, most: int) -> list[float]:
        rough = (self.high - self.low) / most
        scale = 10 ** math.floor(math.log10(rough))
        step = next(each * scale for each in _STEPS if each * scale >= rough * (1 - 1e-9))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [number * step for number in range(first, last + 1)]

    def _log_ticks(self, most: int) -> list[float]:
        first, last = math.floor(_log(self.low)), math.ceil(_log(self.high))
        for parts in ((1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
            found = [part * 10.0**power for power in range(first, last + 1) for part in parts]
            found = [each for each in found if self.low <= each <= self.high]
            if len(found) <= most:
                break
        else:
            found = found[:: -(-len(found) // most)]
        return found if len(found) > 1 else self._even_ticks(most)


def _log(value: float) -> float:
    return math.log10(max(value, 1e-300))


def fit_axis(values: Sequence[float], start: float, end: float, *, log: bool = False) -> Axis:
    """An axis with room for finite values, some at least; it is cut below outliers far above all others."""
    ordered = sorted(values)
    low, high, most = ordered[0], ordered[-1], ordered[int(0.99 * (len(ordered) - 1))]
    if log and low > 0:
        margin = (high / low) ** _ROOM if high > low else 1.5
        return Axis(low / margin, high * margin, start, end, log=True)
    if high - low > _OUTLIER * (most - low) > 0:
        high = low + 1.5 * (most - low)
    margin = _ROOM * (high - low) if high > low else abs(high) / 2 or 1.0
    return Axis(low - margin, high + margin, start, end)


def label(value: float) -> str:
    """A number in few letters: 12k, 0.25, 3e-05."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g}{suffix}"
    return f"{value:.4g}" if abs(value) >= 1e-12 else "0"
