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


class RobustWindow:
    """The last accepted values of a series."""

    def __init__(self, size: int, floor: float = 0.0) -> None:
        """`floor`: the least deviation, in the unit of the series."""
        self.size, self._floor = size, floor
        self._values: list[float] = []
        self._sorted: list[float] = []
        self._usual = 0.0
        """Moving average of the deviation."""
        self.middle, self.deviation = 0.0, 1.0

    def __len__(self) -> int:
        return len(self._values)

    def z(self, value: float) -> float:
        """Distance from the median in deviations; infinite for a value that is not finite, 0 without values."""
        if not math.isfinite(value):
            return math.inf
        return (value - self.middle) / self.deviation if self._values else 0.0

    def at(self, z: float) -> float:
        """The value at a distance."""
        return self.middle + z * self.deviation

    def add(self, value: float) -> None:
        """Accept a finite value, cut where it stands out above."""
        if len(self) >= CUT_FROM and self.z(value) > OUTLIER:
            value = self.at(CUT_TO)
        self._values.append(value)
        insort(self._sorted, value)
        if len(self._values) > self.size:
            del self._sorted[bisect_left(self._sorted, self._values.pop(0))]
        self._measure(1 / self.size)

    def _measure(self, share: float) -> None:
        self.middle = middle_of(self._sorted)
        found = NORMAL * median_distance(self._sorted, self.middle)
        floor = max(self._floor, LEAST_SHARE * abs(self.middle), 1e-9)
        self.deviation = max(found, KEPT_SHARE * self._usual, floor)
        self._usual += (self.deviation - self._usual) * (share if self._usual else 1.0)

    def state(self) -> dict[str, Any]:
        """What `load` takes."""
        return {"values": list(self._values), "usual": self._usual, "middle": self.middle, "deviation": self.deviation}

    def load(self, state: dict[str, Any]) -> None:
        """Take over what `state()` returned."""
        self._values = [float(each) for each in state["values"][-self.size :]]
        self._sorted = sorted(self._values)
        self._usual, self.middle, self.deviation = state["usual"], state["middle"], state["deviation"]


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
