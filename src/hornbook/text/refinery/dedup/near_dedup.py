"""Near duplicates: documents that share a band of their MinHash signatures form clusters; one of each is kept.

MinHash signatures in bands: Broder 1997; Leskovec et al., Mining of Massive Datasets, 3.4. Shingles are hashed to 32
bits; the i-th permutation of these is x -> a_i x + b_i modulo 2**32 with odd a_i. For hashes that look random, each
permutation's least value is that of any shingle with the same probability, whatever a_i and b_i are.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.kernels.compiled import MIX_FIRST, compiled, mix
from hornbook.kernels.packed import hash_windows
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.dedup.external_sort import repeated, sorted_records
from hornbook.text.refinery.dedup.spans import BUDGET, streamed
from hornbook.text.refinery.step import CorpusView, GlobalDecision
from hornbook.text.refinery.words.words import hashed_words

_TILE = 2048
"""Shingles that fit into the first-level cache while all permutations run over them."""


class NearDedup(GlobalDecision):
    """Drops all but the longest, the first or the best of each cluster."""

    reasons = ("near duplicate",)
    budget = BUDGET

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        # The same numbers in every run: sketches of different runs must agree.
        chance = np.random.Generator(np.random.PCG64(0x68_6F_72_6E))
        drawn = chance.integers(0, 2**32, (config.bands * config.rows, 2), dtype=np.uint32)
        self._multipliers, self._offsets = drawn[:, 0] | np.uint32(1), drawn[:, 1].copy()
        self.needs = {"longest": ("bytes",), "first": ()}.get(config.keep, (config.keep,))

    def check(self, columns: Mapping[str, str]) -> None:
        """Raises UsageError where `keep` is no measured column of numbers."""
        keep = self.config.keep
        numbers = [name for name, dtype in columns.items() if dtype in ("int64", "float64", "bool")]
        if keep not in ("longest", "first", *numbers):
            raise UsageError(
                f"step {self.name!r}: keep = {keep!r} is neither `longest` nor `first` nor a number that a step "
                f"measures (there are {', '.join(numbers) or 'none'})"
            )

    def sketch(self, documents: Sequence[Document], first: int) -> np.ndarray:
        """uint64 [documents, bands]."""
        del first
        config = self.config
        keys = np.empty((len(documents), config.bands), np.uint64)
        words = hashed_words((document.text for document in documents), config.words)
        band_keys(words.hashes, words.firsts, config.shingle, config.rows, self._multipliers, self._offsets, keys)
        return keys

    def decide_all(self, corpus: CorpusView) -> np.ndarray:
        """1 for documents that are not the representative of their cluster."""
        clusters = self.clusters(corpus)
        for name in self.needs:
            _choose_representatives(clusters, self._worth(corpus.columns[name]))
        return (clusters != np.arange(len(clusters))).astype(np.uint8)

    def _worth(self, values: np.ndarray) -> np.ndarray:
        """Values of which the greatest is best; NaN is worst."""
        if values.dtype == np.int64:
            return ~values if self.config.lowest else values
        values = values.astype(np.float64)
        return np.nan_to_num(-values if self.config.lowest else values, nan=-np.inf, posinf=np.inf, neginf=-np.inf)

    def clusters(self, corpus: CorpusView) -> np.ndarray:
        """int64 [rows]: the first document of each document's cluster."""
        chunks = partial(_band_records, corpus)
        count = self.config.bands * len(corpus.alive)
        candidates = repeated(chunks, count, self.budget // 3)
        parents = np.arange(len(corpus.alive))
        first = np.zeros(2, np.uint64)
        for records in sorted_records(candidates, corpus.scratch / "bands.bin", 2 * self.budget // 3):
            _unite(records, first, parents)
        _flatten(parents)
        return parents


def _band_records(corpus: CorpusView) -> Iterator[np.ndarray]:
    """(key, row) of every band of documents that are alive and have words."""
    for sketch, first in zip(corpus.sketches, corpus.firsts, strict=True):
        row = first
        for keys in streamed(sketch):
            alive = corpus.alive[row : row + len(keys)] & (keys[:, 0] != 0)
            rows = np.flatnonzero(alive).astype(np.uint64) + np.uint64(row)
            yield np.stack([keys[alive].ravel(), np.repeat(rows, keys.shape[1])], axis=1)
            row += len(keys)


@compiled
def _root(parents, row):
    """The first document of a row's cluster; halves the path to it."""
    while parents[row] != row:
        parents[row] = parents[parents[row]]
        row = parents[row]
    return row


@compiled
def _unite(records, first, parents):
    """Join rows of equal keys; `first` is the first record with the current key."""
    for i in range(len(records)):
        if records[i, 0] != first[0]:
            first[:] = records[i]
            continue
        # A root is the first document of its cluster, so parents come before their children.
        one, other = _root(parents, np.int64(first[1])), _root(parents, np.int64(records[i, 1]))
        parents[max(one, other)] = min(one, other)


@compiled
def _flatten(parents):
    """Make every parent a root, in one pass: parents come before their children."""
    for row in range(len(parents)):
        parents[row] = parents[parents[row]]


@compiled
def _choose_representatives(clusters, worth):
    """Make the document with the greatest worth (of equals the first) the representative of each cluster."""
    best = np.arange(len(clusters))
    for row in range(len(clusters)):
        if worth[row] > worth[best[clusters[row]]]:
            best[clusters[row]] = row
    for row in range(len(clusters)):
        clusters[row] = best[clusters[row]]


@compiled
def _take_least(shingles, multipliers, offsets, least):
    """One loop per permutation, which compiles to vector instructions."""
    for i in range(len(least)):
        multiplier, offset, value = multipliers[i], offsets[i], least[i]
        for j in range(len(shingles)):
            value = min(value, np.uint32(multiplier * shingles[j] + offset))
        least[i] = value


@compiled
def _write_keys(least, rows, keys):
    for band in range(len(keys)):
        key = mix(np.uint64(band + 1))
        for row in range(rows):
            key = (key ^ np.uint64(least[band * rows + row])) * MIX_FIRST
            key ^= key >> np.uint64(32)
        keys[band] = mix(key) | np.uint64(1)


@compiled
def band_keys(words, bounds, shingle, rows, multipliers, offsets, keys):
    """Fill `keys` uint64 [documents, bands] from hashes of words; document i has words[bounds[i] : bounds[i + 1]].

    A key is a hash of a band's number and least values; 0 where a document has no word.
    """
    least = np.empty(len(multipliers), np.uint32)
    hashes, shingles = np.empty(_TILE, np.uint64), np.empty(_TILE, np.uint32)
    for document in range(len(keys)):
        start, end = bounds[document], bounds[document + 1]
        if start == end:
            keys[document] = 0
            continue
        width = min(shingle, end - start)
        least[:] = np.uint32(2**32 - 1)
        for place in range(start, end - width + 1, _TILE):
            count = min(_TILE, end - width + 1 - place)
            hash_windows(words[place:], width, hashes[:count])
            for i in range(count):
                shingles[i] = np.uint32(hashes[i] >> np.uint64(32))
            _take_least(shingles[:count], multipliers, offsets, least)
        _write_keys(least, rows, keys[document])
