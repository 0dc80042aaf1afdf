"""Records sorted by a 64-bit key in bounded memory: sorted runs on disk, then one merge of all of them.

A record is a row of a uint64 array, its key the first column. The order is (key, order of arrival), so it does not
depend on the budget. Callers look for equal keys, and most keys are unique: `repeated` leaves most of these out.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np

from hornbook.kernels.compiled import compiled

Chunks = Iterable[np.ndarray]
"""Arrays uint64 [n, width], all of the same width."""


def sorted_records(chunks: Chunks, file: Path, budget: int) -> Iterator[np.ndarray]:
    """All records by (key, order of arrival), in chunks.

    `file` holds all records where they take more than a third of the budget (bytes); it is deleted afterwards.
    """
    sizes: list[int] = []  # of the sorted runs in the file
    held: list[np.ndarray] = []
    size = 0
    for chunk in chunks:
        if held and size + chunk.nbytes > budget // 3:  # sorting takes as much again, and the order
            sizes.append(_append(file, _sort(held)))
            size = 0
        held.append(chunk.copy())  # a view would keep the whole array alive
        size += chunk.nbytes
    if not sizes:
        yield from [_sort(held)] if held else []
        return
    width = held[0].shape[1]
    sizes.append(_append(file, _sort(held)))
    yield from _merged(file, sizes, width, budget)
    file.unlink()


def repeated(chunks: Callable[[], Chunks], count: int, budget: int) -> Iterator[np.ndarray]:
    """The records whose keys occur more than once, and a few others; `chunks` is called twice.

    There are about `count` records. Keys are hashes but for the last bit: their low bits choose one of many two-bit
    counters, which fit into the budget.
    """
    slots = 1 << 10
    while slots < 4 * count and slots <= 2 * budget:
        slots *= 2
    counters = np.zeros(slots // 4, np.uint8)
    for chunk in chunks():
        _count(chunk, counters)
    for chunk in chunks():
        found = np.empty_like(chunk)
        yield found[: _counted_twice(chunk, counters, found)]


@compiled
def _count(records: np.ndarray, counters: np.ndarray) -> None:
    mask = np.uint64(4 * counters.size - 1)
    for i in range(len(records)):
        slot = (records[i, 0] >> np.uint64(1)) & mask
        shift = np.uint8(2 * (slot & np.uint64(3)))
        old = counters[slot >> np.uint64(2)]
        if (old >> shift) & 3 < 2:
            counters[slot >> np.uint64(2)] = old + np.uint8(1 << shift)


@compiled
def _counted_twice(records: np.ndarray, counters: np.ndarray, found: np.ndarray) -> int:
    mask = np.uint64(4 * counters.size - 1)
    count = 0
    for i in range(len(records)):
        slot = (records[i, 0] >> np.uint64(1)) & mask
        if (counters[slot >> np.uint64(2)] >> np.uint8(2 * (slot & np.uint64(3)))) & 3 > 1:
            found[count] = records[i]
            count += 1
    return count


def _sort(chunks: list[np.ndarray]) -> np.ndarray:
    """Sort by (key, order of arrival); empties the list, to free memory."""
    records = np.concatenate(chunks)
    chunks.clear()
    order = np.argsort(records[:, 0])
    _in_order_of_arrival(records, order)
    return records[order]


@compiled
def _in_order_of_arrival(records: np.ndarray, order: np.ndarray) -> None:
    """Put equal keys into order of arrival: the library's stable sorts take three times as long."""
    start = 0
    for i in range(1, len(order) + 1):
        if i == len(order) or records[order[i], 0] != records[order[start], 0]:
            if i - start > 1:
                order[start:i].sort()
            start = i


def _append(file: Path, records: np.ndarray) -> int:
    """Append a sorted run to the file; returns how many records it has."""
    with file.open("ab") as out:
        records.tofile(out)
    return len(records)


def _merged(file: Path, sizes: list[int], width: int, budget: int) -> Iterator[np.ndarray]:
    """All records, in chunks. A block of each run is in memory: a fifth of the budget, as sorting takes copies."""
    rows = max(budget // (5 * 8 * width * len(sizes)), 16)
    runs = [_blocks(file, width, end - size, end, rows) for end, size in zip(accumulate(sizes), sizes, strict=True)]
    nothing = np.empty(0, np.uint64), np.empty((0, width), np.uint64)
    blocks = [next(run, nothing) for run in runs]
    while any(len(keys) for keys, _ in blocks):
        # Unread records come after the last record of their run's block: all up to the least of these is complete.
        last, least = min((keys[-1], run) for run, (keys, _) in enumerate(blocks) if len(keys))
        found = []
        for run, (keys, records) in enumerate(blocks):
            end = keys.searchsorted(last, "right" if run <= least else "left")
            found.append(records[:end])
            blocks[run] = (keys[end:], records[end:]) if end < len(keys) else next(runs[run], nothing)
        yield _sort(found)


def _blocks(file: Path, width: int, first: int, end: int, rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(keys, records) of the file from record `first` to `end`, at most `rows` at a time."""
    for start in range(first, end, rows):
        count, offset = min(rows, end - start) * width, start * 8 * width
        records = np.fromfile(file, np.uint64, count, offset=offset).reshape(-1, width)
        yield records[:, 0].copy(), records
