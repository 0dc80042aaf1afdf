"""An axis: which pixel of a picture a value is at, and which values have ticks."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hornbook.studio.svg import element, line, text

_STEPS = (1.0, 2.0, 2.5, 5.0, 10.0)
_ROOM = 0.04
"""Share of an axis that is left free at either end."""
_OUTLIER = 4.0
"""An axis is cut if its maximum is this many times as far from the minimum as the 99th percentile."""


@dataclass(frozen=True)
class Axis:
    """Values from `low` to `high` at pixels from `start` to `end` (`end` may be the smaller one)."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def pixel(self, value: float) -> float:
        """Pixel of a value; a value beyond the axis is at its end."""
        low, high, value = (_log(each) if self.log else each for each in (self.low, self.high, value))
        share = (value - low) / (high - low)
        return self.start + min(max(share, 0.0), 1.0) * (self.end - self.start)

    def ticks(self, most: int) -> list[float]:
        """At most `most` round values on the axis (one more on a logarithmic one)."""
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
    """An axis for finite values, at least one of them; outliers far above the others are beyond its end."""
    ordered = sorted(values)
    low, high, most = ordered[0], ordered[-1], ordered[int(0.99 * (len(ordered) - 1))]
    if log and low > 0:
        margin = (high / low) ** _ROOM if high > low else 1.5
        return Axis(low / margin, high * margin, start, end, log=True)
    if high - low > _OUTLIER * (most - low) > 0:
        high = low + 1.5 * (most - low)
    margin = _ROOM * (high - low) if high > low else abs(high) / 2 or 1.0
    return Axis(low - margin, high + margin, start, end)


def grid_lines(x: Axis, y: Axis, x_ticks: Iterable[float], y_ticks: Iterable[float]) -> Iterator[str]:
    """SVG of a panel: lines at the ticks, the numbers of the vertical axis, and a frame."""
    for tick in y_ticks:
        yield line(x.start, y.pixel(tick), x.end, y.pixel(tick), "grid")
        yield text(label(tick), x.start - 6, y.pixel(tick) + 4, "small", "end")
    for tick in x_ticks:
        yield line(x.pixel(tick), y.end, x.pixel(tick), y.start, "grid")
    yield element("rect", x=x.start, y=y.end, width=x.end - x.start, height=y.start - y.end, class_="frame")


def numbers_below(x: Axis, ticks: Iterable[float], y: float) -> Iterator[str]:
    """SVG of the numbers of a horizontal axis, with their baseline at `y`."""
    return (text(label(tick), x.pixel(tick), y, "small", "middle") for tick in ticks)


def label(value: float) -> str:
    """A number in few characters: 12k, 0.25, 3e-05."""
    for scale, suffix in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= scale:
            return f"{value / scale:.4g}{suffix}"
    return f"{value:.4g}" if abs(value) >= 1e-12 else "0"
