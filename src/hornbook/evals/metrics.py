"""Metrics of labelled sets, by their published definitions, each a function of sums over labels.

Statistics of groups of documents add up to those of all, and metrics are computed of the sums: so the same code scores
a set and the samples of it that errors come from. Where a metric is not defined (no such label, no variance) it is
NaN, or 0 where that is the definition's convention.
Questions whose candidates are scored one by one (COPA, MultiRC, ReCoRD) are scored as SuperGLUE does.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import xxhash
from jaxtyping import Float, Int

from hornbook.evals.items import sums_by
from hornbook.model.heads.label_answers import entities

Rows = Float[np.ndarray, "n columns"]
Values = Float[np.ndarray, " n"]
Documents = Int[np.ndarray, " n"]
"""The document, or question, that each row belongs to, by its number from 0."""
Groups = Int[np.ndarray, " documents"]
"""The group that each document belongs to, by its number from 0."""
Statistics = Float[np.ndarray, "groups m"]
Sums = Float[np.ndarray, " m"]
_ROUNDING = 1e-13
"""Share of a sum of squares below which a variance is no more than rounding."""


class LabelMetrics(Protocol):
    """The metrics of one kind of labels."""

    def statistics(self, rows: Rows, documents: Documents, groups: Groups) -> Statistics:
        """Statistics of each group of documents."""
        ...

    def of(self, sums: Sums) -> dict[str, float]:
        """Metrics by name, of sums of statistics."""
        ...


@dataclass(frozen=True)
class Means:
    """Metrics that are the means of columns."""

    names: Sequence[str]

    def statistics(self, rows: Rows, documents: Documents, groups: Groups) -> Statistics:
        return sums_by(groups[documents], np.insert(rows, 0, 1.0, axis=1))

    def of(self, sums: Sums) -> dict[str, float]:
        return dict(zip(self.names, (sums[1:] / sums[0]).tolist(), strict=True))


class Preferred(Means):
    """Rows: rewards of the chosen and of the rejected answer."""

    def statistics(self, rows: Rows, documents: Documents, groups: Groups) -> Statistics:
        chosen, rejected = rows.T
        return super().statistics(np.stack([chosen > rejected, chosen - rejected], 1), documents, groups)


@dataclass(frozen=True)
class OneLabel:
    """Rows: the number of the label that is expected, and of the predicted one, of so many `labels`."""

    labels: int

    def statistics(self, rows: Rows, documents: Documents, groups: Groups) -> Statistics:
        """How often each label is expected, predicted, and both."""
        count = int(groups.max()) + 1
        expected, predicted = rows.T.astype(int) + groups[documents] * self.labels
        parts = (expected, predicted, expected[expected == predicted])
        counts = [np.bincount(part, minlength=count * self.labels).reshape(count, self.labels) for part in parts]
        return np.concatenate(counts, 1).astype(np.float64)

    def of(self, sums: Sums) -> dict[str, float]:
        counts = sums.reshape(3, self.labels)
        binary = {"f1": float(f1_of_labels(counts)[1])} if self.labels == 2 else {}
        accuracy = {"accuracy": float(counts[2].sum() / counts[0].sum())}
        return accuracy | binary | {"macro_f1": macro_f1(counts), "mcc": matthews(counts)}


Counts = Float[np.ndarray, "3 labels"]
"""How often each label is expected, predicted, and both."""


def f1_of_labels(counts: Counts) -> Float[np.ndarray, " labels"]:
    """F1 of each label: 2 true positives / (predicted + expected); 0 where both are 0."""
    return 2 * counts[2] / np.maximum(counts[0] + counts[1], 1)


def macro_f1(counts: Counts) -> float:
    """Mean F1 of the labels that are expected or predicted somewhere; the others say nothing about the model."""
    return float(f1_of_labels(counts)[counts[0] + counts[1] > 0].mean())


def matthews(counts: Counts) -> float:
    """Matthews correlation of any number of labels (Gorodkin 2004); 0 where one side has one label only."""
    (expected, predicted, both), total = counts, float(counts[0].sum())
    agreement = float(both.sum()) * total - float(expected @ predicted)
    spread = math.sqrt(total**2 - float(predicted @ predicted)) * math.sqrt(total**2 - float(expected @ expected))
    return agreement / spread if spread else 0.0


@dataclass(frozen=True)
class SeveralLabels:
    """Rows: for each label 1 or 0 as it is expected, then as predicted. Accuracy is of whole sets, F1 of all labels."""

    def statistics(self, rows: Rows, documents: Documents, groups: Groups) -> Statistics:
        expected, predicted = np.hsplit(rows, 2)
        whole = (expected == predicted).all(1)
        parts = [np.ones(len(rows)), whole, (expected * predicted).sum(1), rows.sum(1)]
        return sums_by(groups[documents], np.stack(parts, 1))

    def of(self, sums: Sums) -> dict[str, float]:
        texts, whole, both, either = sums.tolist()
        return {"accuracy": whole / texts, "f1": 2 * both / max(either, 1.0)}


@dataclass(frozen=True)
class Numbers:
    """Rows: numbers as they are expected, then as predicted. Correlations, the mean of those of each number."""

    def statistics(self, rows: Rows, documents: Documents, groups: Groups) -> Statistics:
        expected, predicted = np.hsplit(rows, 2)
        pairs = list(zip(expected.T, predicted.T, strict=True))
        columns = [*(moments(*each) for each in pairs), *(_ranked(*each) for each in pairs)]
        return sums_by(groups[documents], np.concatenate(columns, 1))

    def of(self, sums: Sums) -> dict[str, float]:
        numbers = len(sums) // 9
        by_value, by_rank = sums[: 6 * numbers].reshape(-1, 6), sums[6 * numbers :].reshape(-1, 3)
        pearson, spearman = [correlation(each) for each in by_value], [_ratio(*each) for each in by_rank.tolist()]
        return {"pearson": float(np.mean(pearson)), "spearman": float(np.mean(spearman))}


def moments(x: Values, y: Values) -> Float[np.ndarray, "n 6"]:
    """Of each pair 1, x, y, their squares and product, by the distance from the medians: constants are zeros."""
    x, y = x - np.median(x), y - np.median(y)
    return np.stack([np.ones(len(x)), x, y, x * x, y * y, x * y], 1)


def correlation(sums: Float[np.ndarray, " 6"]) -> float:
    """Pearson's, of sums of `moments`; NaN where one of the two does not vary."""
    n, x, y, xx, yy, xy = sums.tolist()
    variances = [square - mean * mean / n for square, mean in ((xx, x), (yy, y))]
    varies = [each > _ROUNDING * square for each, square in zip(variances, (xx, yy), strict=True)]
    return _ratio(xy - x * y / n, *variances) if all(varies) else math.nan


def _ratio(product: float, first: float, second: float) -> float:
    return product / math.sqrt(first * second) if first > 0 and second > 0 else math.nan


def _ranked(x: Values, y: Values) -> Float[np.ndarray, "n 3"]:
    """Products of ranks, whose sums have Spearman's correlation: of x and y, x and x, y and y.

    A rank depends on all pairs, so those of a sample are others. What a pair changes of a product is its own part, and
    that of the ranks it moves: the statistics are those parts (Hoeffding's projection), right to first order.
    """
    ours, theirs = Ranked(x), Ranked(y)
    return np.stack([ours.projected(theirs), ours.projected(ours), theirs.projected(theirs)], 1)


class Ranked:
    """Values by their ranks; equals share the mean of their ranks."""

    def __init__(self, values: Values) -> None:
        _, self._which, counts = np.unique(values, return_inverse=True, return_counts=True)
        self._ends, self._counts = np.cumsum(counts), counts
        self.ranks: Values = ((self._ends - (counts - 1) / 2.0)[self._which] - (len(values) + 1) / 2) / len(values)
        """As shares of all, around 0."""

    def projected(self, other: "Ranked") -> Values:
        """Parts of each item in the mean of the products of ranks, which is their mean."""
        product = self.ranks * other.ranks
        return product + self._moved(other.ranks) + other._moved(self.ranks) - 2 * product.mean()

    def _moved(self, factors: Values) -> Values:
        """Mean of the factors of the items whose ranks each item raises: larger ones, and equals by half."""
        at = np.bincount(self._which, factors)
        return ((at[::-1].cumsum()[::-1] - at / 2) / len(factors))[self._which]


@dataclass(frozen=True)
class Entities:
    """Rows: numbers of tags, expected and predicted. Beside their accuracy that of entities, by label and extent.

    As conlleval and seqeval count them by default; 0 where nothing was predicted or nothing is there.
    """

    tags: Sequence[str]

    def statistics(self, rows: Rows, documents: Documents, groups: Groups) -> Statistics:
        """Tags, right ones; entities that are there, predicted, both."""
        order = np.argsort(documents, kind="stable")
        edges = np.flatnonzero(np.diff(documents[order])) + 1
        found = [self._counts(*part.T.tolist()) for part in np.split(rows[order].astype(int), edges)]
        return sums_by(groups, np.array(found, np.float64))

    def _counts(self, expected: list[int], predicted: list[int]) -> tuple[int, ...]:
        right = sum(ours == theirs for ours, theirs in zip(expected, predicted, strict=True))
        wanted, given = (set(entities([self.tags[tag] for tag in tags])) for tags in (expected, predicted))
        return len(expected), right, len(wanted), len(given), len(wanted & given)

    def of(self, sums: Sums) -> dict[str, float]:
        tags, right, there, predicted, both = sums.tolist()
        found = {"precision": both / max(predicted, 1), "recall": both / max(there, 1)}
        return {"accuracy": right / tags} | found | {"f1": 2 * both / max(there + predicted, 1)}


def normalize_answer(text: str) -> str:
    """An answer as SQuAD's official script compares it: lower case, no punctuation, no articles, single spaces."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def answer_scores(predicted: str, answers: Sequence[str]) -> tuple[float, float]:
    """(exact match, F1 of words) with the best of the right answers; without any, nothing is the right answer.

    SQuAD's official definitions: answers that are empty once they are normalised do not count beside others.
    """
    expected = [answer for answer in answers if normalize_answer(answer)] or [""]
    exact = max(float(normalize_answer(predicted) == normalize_answer(answer)) for answer in expected)
    return exact, max(_word_f1(predicted, answer) for answer in expected)


def _word_f1(predicted: str, expected: str) -> float:
    ours, theirs = normalize_answer(predicted).split(), normalize_answer(expected).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))


CANDIDATE_COLUMNS = 4
"""Of a candidate: 1 if it is right, its score (above 0: predicted to be right), exact match and F1 with the answers."""


def question_of(name: str) -> int:
    """A number for the question of a candidate QUESTION#NUMBER, small enough for a float64 to hold it."""
    return xxhash.xxh3_64_intdigest(name.rpartition("#")[0].encode()) >> 11


def best_of(questions: Int[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> Int[np.ndarray, " q"]:
    """Of each question the candidate with the largest score, the first of equals."""
    order = np.lexsort((np.arange(len(scores)), -scores, questions))
    return order[np.flatnonzero(np.diff(questions[order], prepend=-1))]


@dataclass(frozen=True)
class MultiRC:
    """Rows: `CANDIDATE_COLUMNS`. F1a is the F1 of "right" over all answers; exact are questions without a fault."""

    def statistics(self, rows: Rows, documents: Documents, groups: Groups) -> Statistics:
        expected, predicted = rows[:, 0], rows[:, 1] > 0
        wrong = np.bincount(documents, expected != predicted)
        counts = sums_by(groups[documents], np.stack([expected + predicted, expected * predicted], 1))
        return np.concatenate([counts, sums_by(groups, np.stack([np.ones(len(wrong)), wrong == 0], 1))], 1)

    def of(self, sums: Sums) -> dict[str, float]:
        either, both, questions, exact = sums.tolist()
        return {"f1a": 2 * both / max(either, 1.0), "exact_match": exact / questions}


@dataclass(frozen=True)
class Chosen(Means):
    """Rows: `CANDIDATE_COLUMNS`. Means over questions of a column of the candidate with the largest score."""

    columns: Sequence[int]

    def statistics(self, rows: Rows, documents: Documents, groups: Groups) -> Statistics:
        best = best_of(documents, rows[:, 1])
        return super().statistics(rows[best][:, [*self.columns]], documents[best], groups)


CANDIDATE_METRICS: Mapping[str, LabelMetrics] = {
    "copa": Chosen(("accuracy",), (0,)),
    "multirc": MultiRC(),
    "record": Chosen(("exact_match", "f1"), (2, 3)),
}
"""By layout. COPA: how often the better choice is right. ReCoRD: the name that is chosen, as SQuAD's answers."""
