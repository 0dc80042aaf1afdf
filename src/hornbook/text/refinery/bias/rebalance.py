"""Thinning documents until groups and attributes are about independent.

Kamiran and Calders (2012) weigh an example of group g and label a by P(g) P(a) / P(g, a). Here a document has counts of
pairs, not one pair; its weight is the geometric mean of those of its pairs, by their counts. Thinning changes the
expected counts, so weights are updated until they converge (iterative proportional fitting, Deming and Stephan 1940).
The largest weight of an attribute is 1, because documents are dropped and never repeated.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash

from hornbook.errors import UsageError
from hornbook.kernels.compiled import mix
from hornbook.text.refinery.bias.associations import expected_pairs, judgeable, split
from hornbook.text.refinery.bias.mentions import MentionCounts
from hornbook.text.refinery.step import CorpusView, GlobalDecision

REASON = "thinned: a pair is over-represented"
_ROUNDS, _STANDS, _DIGITS, _LEAST = 200, 1e-4, 6, -50.0
"""Most rounds; of the logarithms of weights: tolerance of convergence, digits after rounding, least value."""
_NONE = 0.01
"""Replaces the count of a pair that never occurs."""


class Rebalance(GlobalDecision):
    """Keeps documents without pairs; keeps each other with its probability, drawn by its hash."""

    reasons = (REASON,)
    sketches = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._counts = MentionCounts(config)
        if unknown := sorted(set(config.attributes) - set(self._counts.attributes)):
            known = ", ".join(self._counts.attributes)
            raise UsageError(f"step {self.name!r}: {config.path} has no attribute {unknown[0]!r}: it has {known}")
        self.measurers = (self._counts,)

    def decide_all(self, corpus: CorpusView) -> np.ndarray:
        """1 for documents drawn to be dropped. Memory holds one task's counts; all, without zeros, are on disk."""
        groups, drop = len(self._counts.groups), np.zeros(len(corpus.alive), np.uint8)
        mentions, files = np.zeros(groups), []
        for number, (_, counts) in enumerate(self._counted(corpus)):
            mentions += counts[:, :groups].sum(axis=0)
            files.append(corpus.scratch / f"{number}.npz")
            Sparse.of(counts[_with_pairs(counts, groups)]).save(files[-1])

        def parts() -> Iterator[Sparse]:
            return map(Sparse.load, files)

        wanted = self.config.attributes
        chosen = np.array([not wanted or name in wanted for name in self._counts.attributes])
        chances = find_chances(parts, mentions, chosen, self.config.floor)
        for first, part, hashes, (alive, counts) in zip(
            corpus.firsts, parts(), corpus.stream("hash"), self._counted(corpus), strict=True
        ):
            here = _with_pairs(counts, groups)
            drop[first : first + len(alive)][here] = self._draw(hashes[here, 0]) >= chances(part)
        return drop

    def _counted(self, corpus: CorpusView) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """For each task: alive, bool [documents], and counts, int64 [documents, columns], 0 for documents not alive."""
        for first, *columns in zip(corpus.firsts, *map(corpus.stream, self._counts.full_names), strict=True):
            alive = corpus.alive[first : first + len(columns[0])]
            yield alive, np.stack(columns, axis=1) * alive[:, None]

    def _draw(self, hashes: np.ndarray) -> np.ndarray:
        """Random numbers in [0, 1) from the documents' hashes, the step's name and the seed."""
        key = np.uint64(xxhash.xxh3_64_intdigest(self.name.encode(), seed=self.config.seed))
        return mix(hashes ^ key) / 2.0**64


def _with_pairs(counts: np.ndarray, groups: int) -> np.ndarray:
    return np.flatnonzero(counts[:, groups:].any(axis=1))


@dataclass(frozen=True, slots=True, eq=False)
class Sparse:
    """Counts of documents with pairs, as a sparse matrix: mentions of each group, then pairs."""

    shape: tuple[int, int]
    """Documents, columns."""
    entries: np.ndarray
    """uint32 [3, entries]: document, column, count."""

    @classmethod
    def of(cls, counts: np.ndarray) -> Self:
        """The matrix of counts [documents, columns]."""
        places = np.nonzero(counts)
        return cls(counts.shape, np.stack([*places, counts[places]]).astype(np.uint32))

    def save(self, path: Path) -> None:
        """Write a file (.npz)."""
        np.savez(path, shape=self.shape, entries=self.entries)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file."""
        with np.load(path) as found:
            return cls(tuple(found["shape"].tolist()), found["entries"])

    def by_document(self, factors: np.ndarray) -> np.ndarray:
        """float64 [documents]: product of the matrix with `factors` [columns]."""
        document, column, count = self.entries
        return np.bincount(document, count * factors[column], self.shape[0])

    def by_column(self, factors: np.ndarray) -> np.ndarray:
        """float64 [columns]: product of the transposed matrix with `factors` [documents]."""
        document, column, count = self.entries
        return np.bincount(column, count * factors[document], self.shape[1])


def find_chances(
    parts: Callable[[], Iterable[Sparse]], mentions: np.ndarray, chosen: np.ndarray, floor: float
) -> Callable[[Sparse], np.ndarray]:
    """A function that gives the probability of keeping each document of a part, float64 [documents].

    `parts()` iterates over the documents with pairs, each time anew; mentions [groups] are those of all documents;
    chosen [attributes] are rebalanced where their pairs are frequent enough to be judged.
    """
    groups = len(mentions)
    totals = sum((part.by_column(np.ones(part.shape[0])) for part in parts()), np.zeros(groups * (1 + len(chosen))))
    elsewhere, pairs = mentions - totals[:groups], split(totals, groups)[1]
    judged = chosen & judgeable(expected_pairs(mentions, pairs)).any(axis=0)
    columns = np.concatenate([np.zeros(groups, bool), np.tile(judged, groups)])

    def chances(part: Sparse, weights: np.ndarray) -> np.ndarray:
        logs = np.concatenate([np.zeros(groups), weights.ravel()])
        means = part.by_document(logs) / np.maximum(part.by_document(columns), 1)
        return np.maximum(np.exp(means), floor)

    weights = np.zeros((groups, len(judged)))  # logarithms
    for _ in range(_ROUNDS):
        sums = sum((part.by_column(chances(part, weights)) for part in parts()), np.zeros(len(columns)))
        new = _moved(weights, sums[:groups] + elsewhere, split(sums, groups)[1], judged)
        moved, weights = np.abs(new - weights).max(initial=0), new
        if moved < _STANDS:
            break
    return partial(chances, weights=weights.round(_DIGITS))  # so that another order of summation gives the same


def _moved(weights: np.ndarray, mentions: np.ndarray, pairs: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """The next logarithms of weights: weights times expected / observed, scaled so that an attribute's largest is 1."""
    ratio = np.log(expected_pairs(mentions, pairs)[:, judged]) - np.log(np.maximum(pairs[:, judged], _NONE))
    new = np.zeros_like(weights)
    new[:, judged] = weights[:, judged] + ratio
    return np.maximum(new - new.max(axis=0), _LEAST)
