"""Counts of n-grams of up to eight bytes: each n-gram is one 64-bit number, so there are no collisions.

A text is read as if line feeds preceded it. Every n-gram of a lower order is then a suffix of one of the highest
order, and a prefix of one unless it is all line feeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hornbook.kernels.compiled import compiled
from hornbook.kernels.packed import pack

MOST_ORDER = 8
"""Bytes in a 64-bit number."""
FEED = 0x0A
"""Padding before a text."""


@dataclass(frozen=True, slots=True, eq=False)
class NgramCounts:
    """All n-grams of one order."""

    keys: np.ndarray
    """uint64 [n-grams], sorted: their bytes, the first one highest."""
    raw: np.ndarray
    """int64: how often each occurs."""
    adjusted: np.ndarray
    """int64: as `raw` at the highest order, else the number of different bytes before it (Kneser and Ney 1995)."""


def run_of_feeds(order: int) -> np.uint64:
    """The n-gram that every text begins with."""
    return np.uint64(int.from_bytes(bytes([FEED]) * order))


def last_bytes(keys: np.ndarray, count: int) -> np.ndarray:
    """The n-grams of the last `count` bytes of each."""
    return keys & np.uint64((1 << 8 * count) - 1)


class NgramCounter:
    """Counts n-grams of one order over batches of texts; memory grows with the number of different n-grams."""

    def __init__(self, order: int) -> None:
        self._order = order
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        """Sorted keys and their counts; each part is more than twice as long as the next."""

    def add(self, texts: Sequence[str]) -> None:
        """Count the n-grams of some texts."""
        data, bounds = pack(texts)
        keys = np.empty(int(bounds[-1]) - len(texts), np.uint64)
        _windows(data, bounds, run_of_feeds(8), np.uint64((1 << 8 * self._order) - 1), keys)
        self._parts.append(np.unique(keys, return_counts=True))
        while len(self._parts) > 1 and 2 * len(self._parts[-1][0]) >= len(self._parts[-2][0]):
            self._merge_last()

    def _merge_last(self) -> None:
        keys, counts = (np.concatenate(arrays) for arrays in zip(*self._parts[-2:], strict=True))
        self._parts[-2:] = [_summed(keys, counts)[:2]]

    def levels(self) -> list[NgramCounts]:
        """Counts of all orders, from 1 on."""
        while len(self._parts) > 1:
            self._merge_last()
        keys, raw = self._parts[0]
        found = [NgramCounts(keys, raw, raw)]
        for order in range(self._order - 1, 0, -1):
            longer = found[-1]
            found.append(NgramCounts(*_summed(last_bytes(longer.keys, order), longer.raw)))
        return found[::-1]


def _summed(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sorted keys, each once; sum of its counts; number of its counts). Fast where `keys` are a few sorted runs."""
    order = np.argsort(keys, kind="stable")  # this kind of sort merges runs
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], np.add.reduceat(counts[order], first), np.diff(first, append=len(keys))


@compiled
def _windows(data, bounds, feeds, mask, keys):
    """The n-gram that ends at each byte of each text."""
    place = 0
    for text in range(len(bounds) - 1):
        key = feeds
        for i in range(bounds[text], bounds[text + 1] - 1):
            key = key << np.uint64(8) | np.uint64(data[i])
            keys[place] = key & mask
            place += 1
