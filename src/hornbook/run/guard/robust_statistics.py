"""Robust statistics of a series over its last accepted values: median and median distance from it.

A value that stands far out enters at four deviations over the median. So one outlier cannot hide the next, as it does
in a window of mean and standard deviation, and a lasting change is the usual after about half a window.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from itertools import combinations
from typing import Any

NORMAL = 1.4826
"""Standard deviation of a normal distribution over its median distance from the median."""
KEPT_SHARE = 0.25
"""Of the average deviation so far, the least that a quiet window can make of it."""
LEAST_SHARE = 1e-3
"""Of the median, the least deviation."""
OUTLIER = 6.0
"""Distance in deviations from which a value is cut before it enters."""
CUT_TO = 4.0
"""What it is cut to."""
CUT_FROM = 32
"""Values from which on one is cut: fewer do not say what is usual."""
NEAR = 32
"""Values whose median is the middle of a series with a trend."""


class Newest:
    """The last values of a series, also in order."""

    def __init__(self, size: int, values: Sequence[float] = ()) -> None:
        self.size = size
        self.values = [float(each) for each in values[-size:]]
        self.ordered = sorted(self.values)

    def add(self, value: float) -> None:
        """Take one in, and let the oldest go where there are more than `size`."""
        self.values.append(value)
        insort(self.ordered, value)
        if len(self.values) > self.size:
            del self.ordered[bisect_left(self.ordered, self.values.pop(0))]


class RobustWindow:
    """The last accepted values of a series."""

    def __init__(self, size: int, floor: float = 0.0) -> None:
        """`floor`: the least deviation, in the unit of the series."""
        self._newest, self.floor, self._share = Newest(size), floor, 1 / size
        self._usual = 0.0
        """Moving average of the deviation."""
        self.middle, self.deviation = 0.0, 1.0

    def __len__(self) -> int:
        return len(self._newest.values)

    def z(self, value: float) -> float:
        """Distance from the median in deviations; infinite for a value that is not finite, 0 without values."""
        if not math.isfinite(value):
            return math.inf
        return (value - self.middle) / self.deviation if len(self) else 0.0

    def at(self, z: float) -> float:
        """The value at a distance."""
        return self.middle + z * self.deviation

    def add(self, value: float) -> None:
        """Accept a finite value, cut where it stands out above."""
        if len(self) >= CUT_FROM and self.z(value) > OUTLIER:
            value = self.at(CUT_TO)
        self._newest.add(value)
        self._measure(self._newest)

    def _measure(self, newest: Newest) -> None:
        self.middle = middle_of(newest.ordered)
        self._widen(NORMAL * median_distance(newest.ordered, self.middle))

    def _widen(self, found: float) -> None:
        """The deviation is `found`, or the least that is allowed."""
        floor = max(self.floor, LEAST_SHARE * abs(self.middle), 1e-9)
        self.deviation = max(found, KEPT_SHARE * self._usual, floor)
        self._usual += (self.deviation - self._usual) * (self._share if self._usual else 1.0)

    def state(self) -> dict[str, Any]:
        """What `load` takes."""
        values = list(self._newest.values)
        return {"values": values, "usual": self._usual, "middle": self.middle, "deviation": self.deviation}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state()` returned."""
        self._newest = Newest(self._newest.size, state["values"])
        self._usual, self.middle, self.deviation = state["usual"], state["middle"], state["deviation"]


class TrendWindow(RobustWindow):
    """Values of a series that rises or falls: how far each was from the median of the few before it.

    The middle is the median of the last `NEAR` values. The deviation is that of the distances of `size` values from the
    middle before each: in a window of values themselves a loss that falls makes the deviation large, and what stands
    out would hide in it.
    """

    def __init__(self, size: int, floor: float = 0.0) -> None:
        """`floor`: the least deviation, in the unit of the series."""
        super().__init__(NEAR, floor)
        self._distances, self._share = Newest(size), 1 / size

    def _measure(self, newest: Newest) -> None:
        if len(newest.values) > 1:
            self._distances.add(abs(newest.values[-1] - self.middle))
        self.middle = middle_of(newest.ordered)
        self._widen(NORMAL * middle_of(self._distances.ordered) if self._distances.values else 0.0)

    def __len__(self) -> int:
        return len(self._distances.values)

    def state(self) -> dict[str, Any]:
        """What `load` takes."""
        return {**super().state(), "distances": list(self._distances.values)}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state()` returned."""
        super().load(state)
        self._distances = Newest(self._distances.size, state["distances"])


def middle_of(ordered: Sequence[float]) -> float:
    """Median of sorted values: of an even number the mean of the two in the middle."""
    half, odd = divmod(len(ordered), 2)
    return ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2


def median_distance(ordered: Sequence[float], middle: float) -> float:
    """Median of the distances of sorted values from `middle`, in time that grows with the logarithm of their number."""
    count, right = len(ordered), bisect_left(ordered, middle)
    upper = _distance(ordered, middle, right, count // 2)
    return upper if count % 2 else (_distance(ordered, middle, right, count // 2 - 1) + upper) / 2


def _distance(ordered: Sequence[float], middle: float, right: int, rank: int) -> float:
    """The distance of a rank, from 0, among those of sorted values; from index `right` on they are above `middle`.

    Distances below and above are sorted each: the smallest rank + 1 are `low` of the first and the rest of the second.
    """
    above = len(ordered) - right
    low, high = max(0, rank + 1 - above), min(rank + 1, right)
    while low < high:
        half = (low + high) // 2
        if middle - ordered[right - 1 - half] < ordered[right + rank - half] - middle:
            low = half + 1
        else:
            high = half
    below = middle - ordered[right - low] if low else 0.0
    return max(below, ordered[right + rank - low] - middle if rank >= low else 0.0)


def theil_sen(values: Sequence[float]) -> float:
    """The median of the slopes between all pairs of equally spaced values (Sen 1968): robust to outliers."""
    slopes = sorted((last - first) / (j - i) for (i, first), (j, last) in combinations(enumerate(values), 2))
    return middle_of(slopes)
