"""Near duplicates: documents that share a band of their MinHash signatures form clusters; one of each is kept."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.kernels.compiled import compiled
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.dedup.external_sort import repeated, sorted_records
from hornbook.text.refinery.dedup.minhash import band_keys, permutations
from hornbook.text.refinery.dedup.spans import BUDGET, streamed
from hornbook.text.refinery.step import CorpusView, GlobalDecision
from hornbook.text.refinery.words.words import hashed_words


class NearDedup(GlobalDecision):
    """Drops all but the longest, the first or the best of each cluster."""

    reasons = ("near duplicate",)
    budget = BUDGET

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._multipliers, self._offsets = permutations(config.bands * config.rows)
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
