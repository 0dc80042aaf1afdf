"""Thinning documents until groups and attributes go together as if they were independent.

Kamiran and Calders (2012) weigh an example of group g and label a by P(g) P(a) / P(g, a). Here a document has counts of
pairs, not one pair; its weight is the geometric mean of those of its pairs, by their counts. What is thinned moves what
is expected, so weights are found again until they stand (iterative proportional fitting, Deming and Stephan 1940). The
largest weight of an attribute is 1, for documents are dropped and never repeated.
"""

from typing import Any

import numpy as np
import xxhash

from hornbook.errors import UsageError
from hornbook.text.refinery.associations import expected_pairs, judgeable, split
from hornbook.text.refinery.mentions import MentionCounts
from hornbook.text.refinery.packed import mix
from hornbook.text.refinery.step import Corpus, GlobalDecision

REASON = "thinned: a pair is over-represented"
_ROUNDS, _STANDS, _DIGITS, _LEAST = 200, 1e-4, 6, -50.0
"""Most rounds, when weights stand, digits they are rounded to, and their least: all but the first of logarithms."""
_NONE = 0.01
"""Stands for the count of a pair that never occurs."""


class Rebalance(GlobalDecision):
    """Documents without pairs stay; each other stays with its chance, drawn by its hash."""

    reasons = (REASON,)
    sketches = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._counts = MentionCounts(config)
        if unknown := sorted(set(config.attributes) - set(self._counts.attributes)):
            known = ", ".join(self._counts.attributes)
            raise UsageError(f"step {self.name!r}: {config.path} has no attribute {unknown[0]!r}: it has {known}")
        self.measurers = (self._counts,)

    def decide_all(self, corpus: Corpus) -> np.ndarray:
        """1 for what is drawn to go. Memory holds the counts of documents that have pairs."""
        groups = len(self._counts.groups)
        mentions, rows, hashes, values = np.zeros(groups), [], [], []
        names = ("hash", *self._counts.full_names)
        parts = zip(*(corpus.stream(name) for name in names), strict=True)
        for first, (hash_, *columns) in zip(corpus.firsts, parts, strict=True):
            counts = np.stack(columns, axis=1) * corpus.alive[first : first + len(hash_), None]
            mentions += counts[:, :groups].sum(axis=0)
            here = np.flatnonzero(counts[:, groups:].any(axis=1))
            rows.append(first + here)
            hashes.append(hash_[here, 0])
            values.append(counts[here].astype(np.float64))
        drop = np.zeros(len(corpus.alive), np.uint8)
        if rows:
            chances = self._chances(np.concatenate(values), mentions)
            drop[np.concatenate(rows)] = self._draw(np.concatenate(hashes)) >= chances
        return drop

    def _chances(self, values: np.ndarray, mentions: np.ndarray) -> np.ndarray:
        wanted = self.config.attributes
        chosen = np.array([not wanted or name in wanted for name in self._counts.attributes])
        return keep_chances(values, mentions, chosen, self.config.floor)

    def _draw(self, hashes: np.ndarray) -> np.ndarray:
        """Numbers in [0, 1) that the documents' hashes decide, other ones for another name or seed."""
        key = np.uint64(xxhash.xxh3_64_intdigest(self.name.encode(), seed=self.config.seed))
        return mix(hashes ^ key) / 2.0**64


def keep_chances(values: np.ndarray, mentions: np.ndarray, chosen: np.ndarray, floor: float) -> np.ndarray:
    """float64 [rows]: the chance with which each document stays.

    values [rows, columns] counts its mentions and pairs, mentions [groups] are those of all documents, which have more;
    chosen [attributes] says which are to be evened out, where their pairs are frequent enough to be judged.
    """
    groups = len(mentions)
    elsewhere = mentions - values[:, :groups].sum(axis=0)
    _, pairs = split(values.sum(axis=0), groups)
    judged = chosen & judgeable(expected_pairs(mentions, pairs)).any(axis=0)
    counts = values[:, groups:] * np.tile(judged, groups)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    weights = np.zeros((groups, len(judged)))  # logarithms
    for _ in range(_ROUNDS):
        sums = np.einsum("i,ij->j", np.maximum(np.exp(shares @ weights.ravel()), floor), values)
        new = _moved(weights, sums[:groups] + elsewhere, split(sums, groups)[1], judged)
        moved, weights = np.abs(new - weights).max(initial=0), new
        if moved < _STANDS:
            break
    weights = weights.round(_DIGITS)  # so that sums in another order decide the same
    return np.maximum(np.exp(shares @ weights.ravel()), floor)


def _moved(weights: np.ndarray, mentions: np.ndarray, pairs: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """The next logarithms of weights: those of an attribute times expected / observed, the largest of them 1."""
    ratio = np.log(expected_pairs(mentions, pairs)[:, judged]) - np.log(np.maximum(pairs[:, judged], _NONE))
    new = np.zeros_like(weights)
    new[:, judged] = weights[:, judged] + ratio
    return np.maximum(new - new.max(axis=0), _LEAST)
