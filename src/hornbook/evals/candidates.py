"""Figures of questions whose candidates are scored one by one: COPA, MultiRC and ReCoRD as SuperGLUE scores them."""

import numpy as np
import xxhash
from jaxtyping import Float, Int

from hornbook.evals import metrics

COLUMNS = 4
"""Of a candidate: 1 if it is right, its score (above 0: said to be right), exact match and F1 with the answers."""


def question_of(name: str) -> int:
    """A number for the question of a candidate QUESTION#NUMBER, small enough for a float64 to hold it."""
    return xxhash.xxh3_64_intdigest(name.rpartition("#")[0].encode()) >> 11


def best_of(questions: Int[np.ndarray, " n"], scores: Float[np.ndarray, " n"]) -> Int[np.ndarray, " q"]:
    """Of each question the candidate with the largest score, the first of equals."""
    order = np.lexsort((np.arange(len(scores)), -scores, questions))
    return order[np.flatnonzero(np.diff(questions[order], prepend=-1))]


def candidate_figures(
    layout: str, questions: Int[np.ndarray, " n"], rows: Float[np.ndarray, "n 4"]
) -> dict[str, float]:
    """Figures of all candidates. rows: their `COLUMNS`.

    COPA: how often the better choice is right. MultiRC: F1a, the F1 of "right" over all answers, and exact match, how
    many questions have all answers told apart. ReCoRD: exact match and F1 of the names chosen, as in SQuAD.
    """
    right, scores, exact, f1 = rows.T
    if layout == "multirc":
        said = scores > 0
        table = metrics.confusion(right.astype(int), said.astype(int), 2)
        faults = np.bincount(questions, weights=right != said)
        asked = np.bincount(questions) > 0
        return {"f1a": float(metrics.f1_of_labels(table)[1]), "exact_match": float((faults[asked] == 0).mean())}
    best = best_of(questions, scores)
    if layout == "copa":
        return {"accuracy": float(right[best].mean())}
    return {"exact_match": float(exact[best].mean()), "f1": float(f1[best].mean())}
