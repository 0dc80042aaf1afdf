"""Passages of many words that stand in the corpus more than once are cut, but for the first of each.

Every window of 50 words is a unit (`spans`), so a longer passage is what its windows cover: found exactly, without a
suffix array and without all text in memory (Lee et al. 2022 need both).
"""

from collections.abc import Sequence

import numpy as np

from hornbook.kernels.compiled import compiled
from hornbook.kernels.packed import hash_windows
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.dedup.spans import Copies
from hornbook.text.refinery.words.hashed_words import hashed_words

_ROW = np.uint64(32)


class SpanDedup(Copies):
    """A window of words; what stands between words makes no difference."""

    def sketch(self, documents: Sequence[Document], first: int) -> np.ndarray:
        """uint64 [windows, 3], see `spans`."""
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
