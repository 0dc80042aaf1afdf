"""Figures of labelled sets, by their published definitions, over arrays of what is right and what was said.

Where a figure is not defined (no such label, no variance) it is NaN, or 0 where that is the definition's convention.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, Int

from hornbook.model.heads.label_answers import entities

Labels = Int[np.ndarray, " n"]


def confusion(right: Labels, said: Labels, labels: int) -> Int[np.ndarray, "labels labels"]:
    """How often each label (row) was said to be each (column)."""
    return np.bincount(right * labels + said, minlength=labels * labels).reshape(labels, labels)


def f1_of_labels(table: Int[np.ndarray, "labels labels"]) -> Float[np.ndarray, " labels"]:
    """F1 of each label: 2 true positives / (said + right); 0 where it was neither."""
    both = table.sum(0) + table.sum(1)
    return 2 * np.diag(table) / np.maximum(both, 1)


def macro_f1(table: Int[np.ndarray, "labels labels"]) -> float:
    """Mean F1 of the labels that are there or were said; one that is neither says nothing about the model."""
    return float(f1_of_labels(table)[table.sum(0) + table.sum(1) > 0].mean())


def matthews(table: Int[np.ndarray, "labels labels"]) -> float:
    """Matthews correlation of any number of labels (Gorodkin 2004); 0 where one side has one label only."""
    right, said, total = table.sum(1).astype(float), table.sum(0).astype(float), float(table.sum())
    agreement = float(np.trace(table)) * total - float(right @ said)
    spread = math.sqrt(total**2 - float(said @ said)) * math.sqrt(total**2 - float(right @ right))
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
    """Precision, recall and F1 of entities over all sentences of (right tags, said tags), each by label and extent.

    As conlleval and seqeval count them by default; 0 where nothing was said or nothing is there.
    """
    there = said = both = 0
    for right, found in sentences:
        wanted, given = set(entities(right)), set(entities(found))
        there, said, both = there + len(wanted), said + len(given), both + len(wanted & given)
    precision, recall = both / max(said, 1), both / max(there, 1)
    f1 = 2 * precision * recall / (precision + recall) if both else 0.0
    return {"precision": precision, "recall": recall, "f1": f1}


def normalize_answer(text: str) -> str:
    """An answer as SQuAD's official script compares it: lower case, no punctuation, no articles, single blanks."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def answer_scores(said: str, answers: Sequence[str]) -> tuple[float, float]:
    """(exact match, F1 of words) with the best of the right answers; without any, nothing is the right answer.

    SQuAD's official definitions: answers that are empty once they are normalised do not count beside others.
    """
    right = [answer for answer in answers if normalize_answer(answer)] or [""]
    exact = max(float(normalize_answer(said) == normalize_answer(answer)) for answer in right)
    return exact, max(_word_f1(said, answer) for answer in right)


def _word_f1(said: str, right: str) -> float:
    ours, theirs = normalize_answer(said).split(), normalize_answer(right).split()
    if not ours or not theirs:
        return float(ours == theirs)
    shared = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * shared / (len(ours) + len(theirs))
