"""The words of a batch of texts as hashes, which is all that duplicates are sought by."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hornbook.kernels.compiled import compiled
from hornbook.kernels.packed import hash_words, pack
from hornbook.text.refinery.words.words import word_bounds

_MARK = np.array([32 < byte < 127 and not chr(byte).isalnum() for byte in range(256)])
"""ASCII punctuation."""


@dataclass(frozen=True, slots=True, eq=False)
class HashedWords:
    """All words of all texts, one after the other."""

    hashes: np.ndarray
    """uint64 [words]."""
    starts: np.ndarray
    """int64 [words]: where in the packed texts a word begins."""
    ends: np.ndarray
    """int64 [words]: and where it ends."""
    firsts: np.ndarray
    """int64 [texts + 1]: the first word of each text."""
    bounds: np.ndarray
    """int64 [texts + 1]: where in the packed texts each begins."""


def hashed_words(texts: Iterable[str], definition: str, *, plain: bool = False) -> HashedWords:
    """Find the words and hash them; `plain` ignores case and the punctuation at both ends of a word, or that is one."""
    data, bounds = pack(text.lower() for text in texts) if plain else pack(texts)
    starts, ends = word_bounds(data[: bounds[-1]], definition)
    if plain:
        starts, ends = _without_marks(data, starts, ends, _MARK)
    return HashedWords(hash_words(data, starts, ends), starts, ends, np.searchsorted(starts, bounds), bounds)


@compiled
def _without_marks(data, starts, ends, is_mark):
    kept_starts, kept_ends = np.empty_like(starts), np.empty_like(ends)
    count = 0
    for i in range(len(starts)):
        start, end = starts[i], ends[i]
        while start < end and is_mark[data[start]]:
            start += 1
        while start < end and is_mark[data[end - 1]]:
            end -= 1
        if start < end:
            kept_starts[count], kept_ends[count] = start, end
            count += 1
    return kept_starts[:count], kept_ends[:count]
