"""Repeated parts of documents: all but the first occurrence in the corpus are cut.

A sketch has a record per unit: (hash, row << 32 | start, length), start and length in bytes of the UTF-8 text. Units
are sorted by hash, later ones become spans, spans are sorted by position: two sorts, and no text is read.
"""

import mmap
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import numpy as np

from hornbook.kernels.compiled import compiled
from hornbook.kernels.packed import hash_windows
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.dedup.external_sort import repeated, sorted_records
from hornbook.text.refinery.step import CorpusView, Cut
from hornbook.text.refinery.words.words import hashed_words

BUDGET = 480 * 2**20
"""Bytes of memory that a step over all documents may use, beside a few bytes per document."""

_CHUNK_BYTES = 1 << 19
_ROW = np.uint64(32)
_START = np.uint64(2**32 - 1)


class Copies(Cut):
    """Cuts units whose hash occurred before, in the order (task, row, start)."""

    budget = BUDGET

    def cuts(self, corpus: CorpusView) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The later units; those that touch or overlap are one span."""
        assert len(corpus.alive) < 2**32, "rows are kept in 32 bits"
        budget, count = self.budget // 3, sum(map(len, corpus.sketches))
        candidates = repeated(partial(living, corpus), count, budget)
        together = sorted_records(candidates, corpus.scratch / "by-hash.bin", budget)
        in_order = sorted_records(_later(together), corpus.scratch / "by-place.bin", budget)
        row, start, end = np.concatenate([np.zeros((0, 3), np.int64), *_spans(in_order)]).T
        return row, start, end


def streamed(sketch: np.ndarray) -> Iterator[np.ndarray]:
    """Chunks of a sketch as copies; the pages mapped for them are released, so that memory stays small."""
    if not len(sketch):  # a task without documents: it has no other axes either
        return
    rows = _CHUNK_BYTES // (sketch.itemsize * sketch.shape[1]) + 1
    for start in range(0, len(sketch), rows):
        yield np.array(sketch[start : start + rows])
        if isinstance(sketch.base, mmap.mmap):
            sketch.base.madvise(mmap.MADV_DONTNEED)


def living(corpus: CorpusView) -> Iterator[np.ndarray]:
    """Records of documents that are alive, with rows counted over the whole corpus instead of the task."""
    for sketch, first in zip(corpus.sketches, corpus.firsts, strict=True):
        for records in streamed(sketch):
            yield records[: _keep_living(records, first, corpus.alive)]


@compiled
def _keep_living(records: np.ndarray, first: int, alive: np.ndarray) -> int:
    """Move records of documents that are alive to the front, with corpus rows; returns their number."""
    count = 0
    for i in range(len(records)):
        row = np.int64(records[i, 1] >> _ROW) + first
        if alive[row]:
            for column in range(records.shape[1]):  # a view of a row would be reference-counted
                records[count, column] = records[i, column]
            records[count, 1] += np.uint64(first) << _ROW
            count += 1
    return count


def _later(chunks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """(position, length) of every unit but the first of each hash; units that overlap the first do not count."""
    first = np.zeros(3, np.uint64)
    for records in chunks:
        found = np.empty((len(records), 2), np.uint64)
        yield found[: _find_later(records, first, found)]


@compiled
def _find_later(records: np.ndarray, first: np.ndarray, found: np.ndarray) -> int:
    """`first` is the first unit of the current hash (0: none); it is carried from chunk to chunk."""
    count = 0
    for i in range(len(records)):
        if records[i, 0] != first[0]:
            first[:] = records[i]
        elif records[i, 1] >> _ROW != first[1] >> _ROW or records[i, 1] >= first[1] + first[2]:
            found[count] = records[i, 1:]
            count += 1
    return count


def _spans(chunks: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """int64 [n, 3]: row, start, end; from (position, length) in order of position."""
    last = np.full(3, -1, np.int64)
    for records in chunks:
        spans = np.empty((len(records), 3), np.int64)
        yield spans[: _join(records, last, spans)]
    if last[0] >= 0:
        yield last[None]


@compiled
def _join(records: np.ndarray, last: np.ndarray, spans: np.ndarray) -> int:
    """`last` is the span that may still grow (row -1: none)."""
    count = 0
    for i in range(len(records)):
        row, start = np.int64(records[i, 0] >> _ROW), np.int64(records[i, 0] & _START)
        end = start + np.int64(records[i, 1])
        if row == last[0] and start <= last[2]:
            last[2] = max(last[2], end)
            continue
        if last[0] >= 0:
            spans[count] = last
            count += 1
        last[0], last[1], last[2] = row, start, end
    return count


class SpanDedup(Copies):
    """Cuts passages of repeated windows of words; what is between words makes no difference.

    Every window is a unit, so a longer passage is the union of its windows: found exactly, without a suffix array and
    without all text in memory (Lee et al. 2022 need both).
    """

    def sketch(self, documents: Sequence[Document], first: int) -> np.ndarray:
        """uint64 [windows, 3]: a unit per window."""
        window = self.config.window
        words = hashed_words((document.text for document in documents), self.config.words)
        count = int(np.maximum(np.diff(words.firsts) - window + 1, 0).sum())
        units = np.empty((count, 3), np.uint64)
        _find_windows(words.hashes, words.starts, words.ends, words.firsts, words.bounds, window, first, units)
        return units


@compiled
def _find_windows(hashes, starts, ends, firsts, bounds, window, first, units):
    count = 0
    for document in range(len(bounds) - 1):
        begin, end = firsts[document], firsts[document + 1]
        windows = max(end - begin - window + 1, 0)
        keys = np.empty(windows, np.uint64)
        hash_windows(hashes[begin:end], window, keys)
        row = np.uint64(first + document) << _ROW
        for i in range(windows):
            start = starts[begin + i]
            units[count, 0] = keys[i]
            units[count, 1] = row | np.uint64(start - bounds[document])
            units[count, 2] = np.uint64(ends[begin + i + window - 1] - start)
            count += 1
