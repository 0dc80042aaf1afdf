"""Series over steps: thinned for drawing, moving medians, spikes."""

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]
"""float64 [points]; NaN where there is no number."""

_NUM_MEDIANS = 200
_MEMORY = 50
"""Time constant of the mean, in steps; no spike is found before as many steps."""
_DEVIATIONS = 6.0
_LEAST_RISE = 0.05


class Spike(NamedTuple):
    """A rise of the loss far above its noise."""

    at: int
    """Index of its highest step."""
    before: float
    """Mean before it."""
    peak: float


def thin(x: Numbers, y: Numbers, columns: int, low: float, high: float) -> NDArray[np.intp]:
    """Indices of the points to draw: minimum and maximum in each of `columns` equal parts of [low, high].

    x increases. The first and the last point stay, and one index of each run of NaN, where the line breaks.
    """
    if len(x) <= 2 * columns:
        return np.arange(len(x))
    part = np.clip(((x - low) / max(high - low, 1e-300) * columns).astype(np.int64), 0, columns - 1)
    starts = np.flatnonzero(np.diff(part, prepend=-1))
    sizes = np.diff(starts, append=len(x))
    gaps = np.isnan(y)
    kept = [np.array([0, len(x) - 1]), _first_of_each(gaps, part)]
    for fill, least in ((np.inf, np.minimum), (-np.inf, np.maximum)):
        ends = np.repeat(least.reduceat(np.where(gaps, fill, y), starts), sizes)
        kept.append(_first_of_each((y == ends) & ~gaps, part))
    return np.unique(np.concatenate(kept))


def _first_of_each(chosen: NDArray[np.bool_], part: NDArray[np.int64]) -> NDArray[np.intp]:
    """The first index of each part that is chosen."""
    at = np.flatnonzero(chosen)
    return at[np.diff(part[at], prepend=-1) > 0]


def moving_median(y: Numbers, width: int) -> tuple[NDArray[np.intp], Numbers]:
    """(indices, medians) at up to 200 points: the median of the finite values in a window of `width` around each.

    Windows are shorter at both ends; a point whose window has no finite value is left out.
    """
    places = np.unique(np.linspace(0, len(y) - 1, _NUM_MEDIANS).round().astype(np.intp))
    windows = [y[max(place - width // 2, 0) : place - width // 2 + width] for place in places]
    known = np.array([np.isfinite(window).any() for window in windows])
    return places[known], np.array([np.nanmedian(window) for window in windows if np.isfinite(window).any()])


def find_spikes(y: Numbers) -> Iterator[Spike]:
    """Rises above an exponential moving average by 6 standard deviations and 5 %.

    The steps of a spike do not move the average, unless there are so many that they are a new level.
    """
    mean = variance = 0.0
    known, inside, spike = 0, 0, None
    for at, value in enumerate(y.tolist()):
        if not np.isfinite(value):
            continue
        # mean and variance are of the steps before this one that belong to no spike; `inside` counts those that do
        rise = value - mean
        if known >= _MEMORY and rise > _DEVIATIONS * variance**0.5 and rise > _LEAST_RISE * abs(mean):
            if spike is None or value > spike.peak:
                spike = Spike(at, mean, value)
            inside += 1
            if inside < _MEMORY:
                continue
            known, rise, mean, variance = 0, value, 0.0, 0.0
        if spike is not None:
            yield spike
            spike, inside = None, 0
        known += 1
        rate = 1 / min(known, _MEMORY)
        mean += rate * rise
        variance = (1 - rate) * (variance + rate * rise * rise)
    if spike is not None:
        yield spike
