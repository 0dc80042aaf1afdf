"""Position and clock: where the next sample is, given how many were consumed and which windows are skipped.

The clock counts samples consumed and is what a checkpoint stores. Windows are half-open ranges of positions
that no sample is taken from; they live in the ledger and survive a rewind of the clock.
"""

from collections.abc import Iterable

import numpy as np
from jaxtyping import Int64

Windows = tuple[tuple[int, int], ...]


def merge_windows(windows: Iterable[tuple[int, int]]) -> Windows:
    """Union of half-open windows: sorted, disjoint, none empty. ValueError for a window that runs backwards."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted((int(first), int(end)) for first, end in windows):
        if first < 0 or end < first:
            raise ValueError(f"a window of positions runs from a to b with 0 <= a <= b, not [{first}, {end})")
        if first == end:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return tuple(merged)


def position_of(clock: int, windows: Iterable[tuple[int, int]]) -> int:
    """Position of sample number `clock` (from 0) among those that lie in none of the `windows`."""
    position = clock
    for first, end in merge_windows(windows):
        if position < first:
            break
        position += end - first
    return position


def positions_of(clock: int, count: int, windows: Windows) -> Int64[np.ndarray, " count"]:
    """`position_of` for clock, clock + 1, ... ; `windows` as `merge_windows` returns them."""
    positions = np.arange(clock, clock + count, dtype=np.int64)
    for first, end in windows:
        if count and positions[-1] < first:
            break
        positions[positions >= first] += end - first
    return positions
