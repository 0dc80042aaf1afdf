"""How strongly groups and attributes go together: pointwise mutual information with an interval over documents.

The sample is all mentions of any group. For a group g and an attribute a, PMI(g, a) = log2 P(g, a) / (P(g) P(a))
(Church and Hanks 1990), where P(a) is the share of mentions with the attribute nearby: how much more often a occurs
near g than near any group. NPMI is PMI / -log2 P(g, a), from -1 to 1 (Bouma 2009).

Mentions in one document are not independent, so the variance is by linearisation with documents as the sampling units
(Woodruff 1971; the cluster-robust form of Liang and Zeger 1986), for which sums of products of counts are enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, log2, sqrt
from typing import Self

import numpy as np

LEAST_EXPECTED = 5.0
"""Least expected count of a pair, and of its attribute with all other groups, to judge the pair (Cochran 1954)."""
_Z = 1.959964
_RULE_OF_THREE = 3.0


@dataclass(frozen=True, slots=True)
class MentionSums:
    """Sums over documents of the columns in `mentions.MentionCounts`."""

    documents: int
    sums: np.ndarray
    """float64 [columns]."""
    moments: np.ndarray
    """float64 [columns, columns]: sums of products of two columns."""

    @classmethod
    def of(cls, rows: np.ndarray) -> Self:
        """The sums of counts, int64 [documents, columns]."""
        values = rows[rows.any(axis=1)].astype(np.float64)
        return cls(len(rows), values.sum(axis=0), values.T @ values)

    def __add__(self, other: Self) -> "MentionSums":
        return MentionSums(self.documents + other.documents, self.sums + other.sums, self.moments + other.moments)


@dataclass(frozen=True, slots=True)
class Association:
    """A group and an attribute."""

    group: str
    attribute: str
    together: int
    """Mentions of the group with the attribute nearby."""
    expected: float
    """Their number if the attribute occurred near all groups equally often."""
    pmi: float
    """In bits; 1 is twice as often as expected, -inf never."""
    low: float
    high: float
    """95 % interval; of pairs that never occur, by the rule of three."""
    npmi: float

    @property
    def strength(self) -> float:
        """Least distance from 0 within the interval."""
        return max(self.low, -self.high, 0.0)


def associations(counts: MentionSums, groups: Sequence[str], attributes: Sequence[str]) -> list[Association]:
    """All pairs that are frequent enough to be judged, the strongest first."""
    expected = expected_pairs(*split(counts.sums, len(groups)))
    found = []
    for g, a in np.argwhere(judgeable(expected)).tolist():
        found.append(_association(counts, len(groups), g, a, float(expected[g, a]), groups[g], attributes[a]))
    return sorted(found, key=lambda each: (-each.strength, -abs(each.pmi), each.group, each.attribute))


def split(sums: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Mentions [groups] and pairs [groups, attributes] of the columns of a sum."""
    return sums[:groups], sums[groups:].reshape(groups, -1)


def expected_pairs(mentions: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """float64 [groups, attributes]: expected pairs if groups and attributes were independent."""
    return np.outer(mentions, pairs.sum(axis=0)) / max(mentions.sum(), 1)


def judgeable(expected: np.ndarray) -> np.ndarray:
    """bool [groups, attributes]: which pairs are frequent enough."""
    return np.minimum(expected, expected.sum(axis=0) - expected) >= LEAST_EXPECTED


def _association(
    counts: MentionSums, groups: int, g: int, a: int, expected: float, group: str, attribute: str
) -> Association:
    mentions, pairs = split(counts.sums, groups)
    together, total = float(pairs[g, a]), float(mentions.sum())
    if together == 0:
        return Association(group, attribute, 0, expected, -inf, -inf, log2(_RULE_OF_THREE / expected), -1.0)
    gradient = np.zeros_like(counts.sums)  # of ln PMI by the columns' sums
    of_mentions, of_pairs = split(gradient, groups)
    of_mentions += 1 / total
    of_mentions[g] -= 1 / mentions[g]
    of_pairs[:, a] -= 1 / pairs[:, a].sum()
    of_pairs[g, a] += 1 / together
    error = sqrt(max(float(gradient @ counts.moments @ gradient), 0.0)) / log(2)
    pmi = log2(together / expected)
    always = together == total
    npmi = 1.0 if always else pmi / -log2(together / total)
    return Association(group, attribute, int(together), expected, pmi, pmi - _Z * error, pmi + _Z * error, npmi)
