"""Metrics of labelled sets against slow readings of their definitions and against values worked out by hand."""

import itertools
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from hornbook.evals import metrics

DRAW = np.random.default_rng(3)


def of(kind: metrics.LabelMetrics, rows: Any, documents: Any = None) -> dict[str, float]:
    """Metrics of all rows; each is a document of its own unless these are given."""
    rows = np.array(rows, np.float64)
    documents = np.arange(len(rows)) if documents is None else documents
    return kind.of(kind.statistics(rows, documents, np.zeros(documents.max() + 1, int))[0])


def slow_matthews(right: list[int], said: list[int], labels: int) -> float:
    """Correlation of one-hot vectors, as Gorodkin defines it, by sums over all triples of labels."""
    table = [
        [sum(r == k and s == j for r, s in zip(right, said, strict=True)) for j in range(labels)] for k in range(labels)
    ]
    top = sum(
        table[k][k] * table[m][n] - table[n][k] * table[k][m] for k, m, n in itertools.product(range(labels), repeat=3)
    )

    def spread(rows: list[list[int]]) -> float:
        return sum(sum(rows[k]) * sum(sum(rows[other]) for other in range(labels) if other != k) for k in range(labels))

    columns = [list(column) for column in zip(*table, strict=True)]
    bottom = math.sqrt(spread(table)) * math.sqrt(spread(columns))
    return top / bottom if bottom else 0.0


@pytest.mark.parametrize("labels", [2, 3, 5])
def test_matthews_and_f1(labels: int) -> None:
    right, said = DRAW.integers(0, labels, (2, 60))
    said[:30] = right[:30]
    found = of(metrics.OneLabel(labels), np.stack([right, said], 1))
    assert found["accuracy"] == (right == said).mean()
    assert found["mcc"] == pytest.approx(slow_matthews(right.tolist(), said.tolist(), labels), abs=1e-12)
    f1 = []
    for label in range(labels):
        hits = sum((right == label) & (said == label))
        f1.append(2 * hits / (sum(right == label) + sum(said == label)))
    assert found["macro_f1"] == pytest.approx(np.mean(f1))
    assert found.get("f1") == (pytest.approx(f1[1]) if labels == 2 else None)


def test_a_single_answer_has_no_correlation() -> None:
    found = of(metrics.OneLabel(2), [[0, 1], [1, 1], [1, 1]])
    assert (found["mcc"], found["f1"], found["macro_f1"]) == (0, 0.8, 0.4)


def test_a_label_that_never_comes_up_is_not_averaged() -> None:
    """A constant set with a constant answer is all right, however many more labels the head has."""
    assert of(metrics.OneLabel(3), [[1, 1], [1, 1]])["macro_f1"] == 1
    assert of(metrics.OneLabel(4), [[1, 1], [1, 2]])["macro_f1"] == pytest.approx((2 / 3 + 0) / 2)


def test_correlations() -> None:
    x = DRAW.normal(size=50).round(1)
    y = (x + DRAW.normal(size=50)).round(1)
    found = of(metrics.Numbers(), np.stack([x, y], 1))
    assert found["pearson"] == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-12)
    ranks = [[(values < v).sum() + ((values == v).sum() + 1) / 2 for v in values] for values in (x, y)]
    assert found["spearman"] == pytest.approx(np.corrcoef(ranks[0], ranks[1])[0, 1], abs=1e-12)
    assert of(metrics.Numbers(), np.stack([x, np.exp(x)], 1))["spearman"] == pytest.approx(1.0)
    far = of(metrics.Numbers(), np.stack([x + 1e6, y - 1e6], 1))
    assert far == pytest.approx(found, abs=1e-7), "distances from the median, not from 0"
    two = of(metrics.Numbers(), np.stack([x, y, y, -y], 1))
    assert two["pearson"] == pytest.approx((np.corrcoef(x, y)[0, 1] + np.corrcoef(y, -y)[0, 1]) / 2)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-300, 7e7])
def test_constants_have_no_correlation(value: float) -> None:
    """Whose mean is not always the constant: 50 times a third of one is not."""
    found = of(metrics.Numbers(), np.stack([DRAW.normal(size=50), np.full(50, value)], 1))
    assert math.isnan(found["pearson"])
    assert math.isnan(found["spearman"])


def slow_entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """conlleval's rule, tag by tag: what begins a chunk, what ends one."""
    found, start = set(), None
    for place, (tag, following) in enumerate(itertools.pairwise([*tags, "O"])):
        prefix, _, label = tag.partition("-")
        before = tags[place - 1].partition("-")[2] if place else ""
        if prefix == "B" or (prefix == "I" and before != label):
            start = place
        goes_on = following.startswith("I-") and following[2:] == label
        if label and not goes_on:
            assert start is not None
            found.add((label, start, place + 1))
    return found


def test_entities_by_label_and_extent() -> None:
    tags = ["O", "B-A", "I-A", "B-B", "I-B"]
    sentences = [
        ([tags[n] for n in DRAW.integers(0, 5, 9)], [tags[n] for n in DRAW.integers(0, 5, 9)]) for _ in range(200)
    ]
    right = [slow_entities(each) for each, _ in sentences]
    said = [slow_entities(each) for _, each in sentences]
    both = sum(len(r & s) for r, s in zip(right, said, strict=True))
    pairs = [np.array([[tags.index(tag) for tag in side] for side in pair]).T for pair in sentences]
    documents = np.repeat(np.arange(200), 9)
    order = np.random.default_rng(0).permutation(200)  # documents are packed in any order
    rows, of_rows = (
        np.concatenate([pairs[each] for each in order]),
        np.concatenate([documents[each * 9 :][:9] for each in order]),
    )
    scores = of(metrics.Entities(tags), rows, of_rows)
    assert scores["precision"] == pytest.approx(both / sum(map(len, said)))
    assert scores["recall"] == pytest.approx(both / sum(map(len, right)))
    assert scores["f1"] == pytest.approx(2 * both / (sum(map(len, said)) + sum(map(len, right))))
    nothing = {"accuracy": 1, "precision": 0, "recall": 0, "f1": 0}
    assert of(metrics.Entities(tags), [[0, 0]]) == nothing


@pytest.mark.parametrize(
    ("said", "answers", "wanted"),
    [
        ("The  Cat!", ["a cat", "dog"], (1, 1)),
        ("big cat", ["cat"], (0, 2 / 3)),
        ("cat cat", ["cat"], (0, 2 / 3)),
        ("", [], (1, 1)),
        ("cat", [], (0, 0)),
        ("", ["cat"], (0, 0)),
        ("U.S.", ["us"], (1, 1)),
        ("theatre", ["atre"], (0, 0)),
        ("", ["the", "cat"], (0, 0)),
    ],
)
def test_answers_as_squad_compares_them(said: str, answers: list[str], wanted: tuple[float, float]) -> None:
    assert metrics.answer_scores(said, answers) == pytest.approx(wanted)


CANDIDATES = np.random.default_rng(8)


def slow_candidate_metrics(layout: str, questions: list[int], rows: list[list[float]]) -> dict[str, float]:
    """Question by question, as the benchmark's own scripts go through a file of answers."""
    by_question: dict[int, list[list[float]]] = defaultdict(list)
    for question, row in zip(questions, rows, strict=True):
        by_question[question].append(row)
    if layout == "multirc":
        hits = sum(right == 1 and score > 0 for right, score, _, _ in rows)
        said, there = sum(score > 0 for _, score, _, _ in rows), sum(right == 1 for right, _, _, _ in rows)
        precision, recall = hits / said, hits / there
        whole = [all((score > 0) == (right == 1) for right, score, _, _ in each) for each in by_question.values()]
        return {"f1a": 2 * precision * recall / (precision + recall), "exact_match": sum(whole) / len(whole)}
    chosen = [max(each, key=lambda row: row[1]) for each in by_question.values()]
    if layout == "copa":
        return {"accuracy": sum(row[0] for row in chosen) / len(chosen)}
    return {
        "exact_match": sum(row[2] for row in chosen) / len(chosen),
        "f1": sum(row[3] for row in chosen) / len(chosen),
    }


@pytest.mark.parametrize("layout", ["copa", "multirc", "record"])
def test_candidates_as_a_slow_reading_of_the_definitions(layout: str):
    for _ in range(20):
        questions = np.unique(CANDIDATES.integers(0, 40, 150), return_inverse=True)[1]
        right = CANDIDATES.integers(0, 2, 150)
        scores = CANDIDATES.integers(-2, 3, 150) + right  # with ties
        rows = np.column_stack([right, scores, right, CANDIDATES.uniform(size=150)]).astype(float)
        expected = slow_candidate_metrics(layout, questions.tolist(), rows.tolist())
        assert of(metrics.CANDIDATE_METRICS[layout], rows, questions) == pytest.approx(expected, abs=1e-12)


def test_the_first_of_equals_is_chosen():
    assert metrics.best_of(np.array([3, 1, 3, 1, 1]), np.array([2.0, 0.0, 2.0, 5.0, 5.0])).tolist() == [3, 0]


def test_questions_have_numbers_that_a_float_holds():
    numbers = {metrics.question_of(f"a/b#c.jsonl:{row}-{question}#0") for row in range(50) for question in range(50)}
    assert len(numbers) == 2500
    assert all(int(float(number)) == number for number in numbers)
    assert metrics.question_of("x#1") == metrics.question_of("x#22") != metrics.question_of("y#1")
