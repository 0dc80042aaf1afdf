"""Records sorted by a 64-bit key in bounded memory: sorted runs on disk, then one merge of all of them.

A record is a row of a uint64 array, its key the first column. The order is (key, order of arrival), so it does not
depend on the budget. What is sought are equal keys, and most keys stand alone: `repeated` leaves most of those out.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

import numpy as np

from hornbook.kernels.compiled import compiled

Chunks = Iterable[np.ndarray]
"""Arrays uint64 [n, width], all of the same width."""


def sorted_records(chunks: Chunks, file: Path, budget: int) -> Iterator[np.ndarray]:
    """All records by (key, order of arrival), in chunks that are valid until the next one is asked for.

    `file` is as large as all records where they take more than a third of the budget (bytes); it is gone afterwards.
    """
    runs = _Runs(file)
    held: list[np.ndarray] = []
    size = 0
    for chunk in chunks:
        if held and size + chunk.nbytes > budget // 3:  # sorting takes as much again, and an order
            runs.add(_sort(held))
            size = 0
        held.append(chunk.copy())  # a view would keep all of what it is a part of
        size += chunk.nbytes
    if not runs.sizes:
        yield from [_sort(held)] if held else []
        return
    runs.add(_sort(held))
    yield from runs.merged(budget)
    runs.path.unlink()


def repeated(chunks: Callable[[], Chunks], count: int, budget: int) -> Iterator[np.ndarray]:
    """Those of about `count` records whose keys occur more than once, and a few others; `chunks` is asked twice.

    Keys are hashes, the last bit aside: their last bits say which of many two-bit counters counts a key. The counters
    fit into the budget.
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
    """Makes the list empty, for memory."""
    records = np.concatenate(chunks)
    chunks.clear()
    order = np.argsort(records[:, 0])
    _in_order_of_arrival(records, order)
    return records[order]


@compiled
def _in_order_of_arrival(records: np.ndarray, order: np.ndarray) -> None:
    """Put equal keys into their order: the library's stable sorts take three times as long."""
    start = 0
    for i in range(1, len(order) + 1):
        if i == len(order) or records[order[i], 0] != records[order[start], 0]:
            if i - start > 1:
                order[start:i].sort()
            start = i


@dataclass(slots=True)
class _Window:
    """A part of a run in memory."""

    place: int
    end: int
    """Records of the file that are not in memory yet."""


class _Runs:
    """Sorted runs, one after the other in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sizes: list[int] = []
        self._width = 0

    def add(self, records: np.ndarray) -> None:
        """Append a sorted run."""
        with self.path.open("ab") as file:
            records.tofile(file)
        self.sizes.append(len(records))
        self._width = records.shape[1]

    def merged(self, budget: int) -> Iterator[np.ndarray]:
        """All records, through a buffer for each run and one for the result."""
        count = len(self.sizes)
        rows = max(budget // (16 * self._width * (count + 1)), 16)
        buffers = np.empty((count, rows, self._width), np.uint64)
        out = np.empty((rows, self._width), np.uint64)
        heads, filled = np.zeros(count, np.int64), np.zeros(count, np.int64)
        ends = np.cumsum(self.sizes).tolist()
        windows = [_Window(end - size, end) for end, size in zip(ends, self.sizes, strict=True)]
        with self.path.open("rb") as file:
            for run, window in enumerate(windows):
                filled[run] = self._fill(file, window, buffers[run])
            heap = np.arange(count)
            _make_heap(heap, buffers, heads)
            size, made = count, 0
            while size:
                size, made, empty = _merge(heap, size, buffers, heads, filled, out, made)
                if empty >= 0:  # the run on top of the heap has been read to the end of its buffer
                    heads[empty], filled[empty] = 0, self._fill(file, windows[empty], buffers[empty])
                    size = _settle_top(heap, size, buffers, heads, filled)
                if made == rows or not size:
                    yield out[:made]
                    made = 0

    def _fill(self, file: BufferedReader, window: _Window, buffer: np.ndarray) -> int:
        rows = min(len(buffer), window.end - window.place)
        file.seek(window.place * 8 * self._width)
        file.readinto(buffer[:rows].data)
        window.place += rows
        return rows


@compiled
def _before(a, b, buffers, heads):
    """Whether the head of run a comes before that of run b."""
    first, second = buffers[a, heads[a], 0], buffers[b, heads[b], 0]
    return first < second or (first == second and a < b)


@compiled
def _sink(heap, place, size, buffers, heads):
    """Restore the order of a binary heap below `place`."""
    while True:
        least = 2 * place + 1
        if least >= size:
            return
        if least + 1 < size and _before(heap[least + 1], heap[least], buffers, heads):
            least += 1
        if not _before(heap[least], heap[place], buffers, heads):
            return
        heap[place], heap[least] = heap[least], heap[place]
        place = least


@compiled
def _make_heap(heap, buffers, heads):
    for place in range(len(heap) // 2 - 1, -1, -1):
        _sink(heap, place, len(heap), buffers, heads)


@compiled
def _settle_top(heap, size, buffers, heads, filled):
    """The size of the heap after its top run was read on: it leaves where nothing was left to read."""
    if filled[heap[0]] == 0:
        size -= 1
        heap[0] = heap[size]
    _sink(heap, 0, size, buffers, heads)
    return size


@compiled
def _merge(heap, size, buffers, heads, filled, out, made):
    """Fill `out` from `made` on until it is full or a buffer is empty; (size, made, the empty run or -1)."""
    while made < len(out):
        run = heap[0]
        for column in range(out.shape[1]):
            out[made, column] = buffers[run, heads[run], column]
        made += 1
        heads[run] += 1
        if heads[run] == filled[run]:
            return size, made, run
        _sink(heap, 0, size, buffers, heads)
    return size, made, -1
