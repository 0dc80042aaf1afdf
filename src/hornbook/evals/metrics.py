"""Metrics of labelled sets, by their published definitions, over arrays of expected and predicted labels.

Where a metric is not defined (no such label, no variance) it is NaN, or 0 where that is the definition's convention.
Questions whose candidates are scored one by one (COPA, MultiRC, ReCoRD) are scored as SuperGLUE does.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import xxhash
from jaxtyping import Float, Int

from hornbook.model.heads.label_answers import entities

Labels = Int[np.ndarray, " n"]


def confusion(expected: Labels, predicted: Labels, labels: int) -> Int[np.ndarray, "labels labels"]:
    """How often each label (row) was predicted as each (column)."""
    return np.bincount(expected * labels + predicted, minlength=labels * labels).reshape(labels, labels)


def f1_of_labels(table: Int[np.ndarray, "labels labels"]) -> Float[np.ndarray, " labels"]:
    """F1 of each label: 2 true positives / (predicted + expected); 0 where both are 0."""
    both = table.sum(0) + table.sum(1)
    return 2 * np.diag(table) / np.maximum(both, 1)


def macro_f1(table: Int[np.ndarray, "labels labels"]) -> float:
    """Mean F1 of the labels that are expected or predicted somewhere; the others say nothing about the model."""
    return float(f1_of_labels(table)[table.sum(0) + table.sum(1) > 0].mean())


def matthews(table: Int[np.ndarray, "labels labels"]) -> float:
    """Matthews correlation of any number of labels (Gorodkin 2004); 0 where one side has one label only."""
    expected, predicted, total = table.sum(1).astype(float), table.sum(0).astype(float), float(table.sum())
    agreement = float(np.trace(table)) * total - float(expected @ predicted)
    spread = math.sqrt(total**2 - float(predicted @ predicted)) * math.sqrt(total**2 - float(expected @ expected))
    return agreement / spread if spread else 0.0


def pearson(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Correlation; NaN where one of the two does not vary."""
    x, y = x - x.mean(), y - y.mean()
    spread = math.sqrt(float(x @ x)) * math.sqrt(float(y @ y))
    return float(x @ y) / spread if spread else math.nan


def spearman(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float:
    """Correlation of ranks; equals share the mean of their ranks."""
    return pearson(_ranks(x), _ranks(y))


def _ranks(values: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return (ends - (counts - 1) / 2.0)[which]


def entity_scores(sentences: Iterable[tuple[Sequence[str], Sequence[str]]]) -> dict[str, float]:
    """Precision, recall and F1 of entities (label and extent) over all sentences of (expected tags, predicted tags).

    As conlleval and seqeval count them by default; 0 where nothing was predicted or nothing is there.
    """
    there = predicted = both = 0
    for expected, found in sentences:
        wanted, given = set(entities(expected)), set(entities(found))
        there, predicted, both = there + len(wanted), predicted + len(given), both + len(wanted & given)
    precision, recall = both / max(predicted, 1), both / max(there, 1)
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


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


def candidate_metrics(
    layout: str, questions: Int[np.ndarray, " n"], rows: Float[np.ndarray, "n 4"]
) -> dict[str, float]:
    """Metrics of all candidates. rows: their `CANDIDATE_COLUMNS`.

    COPA: how often the better choice is right. MultiRC: F1a, the F1 of "right" over all answers, and exact match, how
    many questions have all answers told apart. ReCoRD: exact match and F1 of the names chosen, as in SQuAD.
    """
    expected, scores, exact, f1 = rows.T
    if layout == "multirc":
        predicted = scores > 0
        table = confusion(expected.astype(int), predicted.astype(int), 2)
        faults = np.bincount(questions, weights=expected != predicted)
        present = np.bincount(questions) > 0
        return {"f1a": float(f1_of_labels(table)[1]), "exact_match": float((faults[present] == 0).mean())}
    best = best_of(questions, scores)
    if layout == "copa":
        return {"accuracy": float(expected[best].mean())}
    return {"exact_match": float(exact[best].mean()), "f1": float(f1[best].mean())}
