"""Scores of suites, against published ones; of tasks from the measurements of labels."""

import functools

import numpy as np
import pytest

from hornbook.evals.labels import LabelScores
from hornbook.evals.suites import TaskScore, suite_scores, task_score
from hornbook.text.config.benchmarks import benchmarks
from hornbook.text.config.labels import ClassLabels, NumberLabels

GLUE = {
    "cola": 60.5, "sst2": 94.9, "mrpc": (89.3 + 85.4) / 2, "stsb": (87.6 + 86.5) / 2, "qqp": (72.1 + 89.3) / 2,
    "mnli": (86.7 + 85.9) / 2, "qnli": 92.7, "rte": 70.1, "wnli": 65.1,
}  # fmt: skip
"""BERT-large on GLUE's leaderboard, whose score is 80.5."""
SUPERGLUE = {
    "boolq": 77.4, "cb": (75.7 + 83.6) / 2, "copa": 70.6, "multirc": (70.0 + 24.0) / 2, "record": (72.0 + 71.3) / 2,
    "rte": 71.6, "wic": 69.5, "wsc": 64.3,
}  # fmt: skip
"""BERT in table 3 of SuperGLUE's paper, whose average is 69.0."""


@pytest.mark.parametrize(("suite", "scores", "published"), [("glue", GLUE, 80.5), ("superglue", SUPERGLUE, 69.0)])
def test_the_mean_of_tasks_is_the_published_one(suite: str, scores: dict[str, float], published: float) -> None:
    found = suite_scores((name, score, 1.0) for name, score in scores.items())[suite]
    assert round(found["score"], 1) == published
    assert not found["missing"]
    assert found["score_se"] == pytest.approx(1 / len(scores) ** 0.5)
    less = suite_scores((name, score, 1.0) for name, score in list(scores.items())[1:])[suite]
    assert (less["score"], less["missing"]) == (None, [next(iter(scores))])


def test_of_several_models_of_a_task_the_median_counts() -> None:
    found = suite_scores([("rte", 0.5, 0.1), ("rte", 0.9, 0.2), ("rte", 0.6, 0.3)])
    assert found["glue"]["tasks"] == found["superglue"]["tasks"] == {"rte": 0.6}
    assert suite_scores([]) == {}


def classes(layout: str, *pairs: tuple[int, int]) -> LabelScores:
    rows = np.array([[0.0, number, *pair] for number, pair in enumerate(pairs)])
    return LabelScores(ClassLabels.model_validate({"layout": layout}), rows)


def score(by_source: dict[str, LabelScores]) -> TaskScore:
    found = task_score(by_source, functools.reduce(LabelScores.__add__, by_source.values()))
    assert found is not None
    return found


def test_a_task_has_the_mean_of_its_metrics() -> None:
    found = classes("mrpc", (1, 1), (0, 1), (1, 1))
    assert score({"dev": found}).as_dict(errors=False) == {
        "task": "mrpc",
        "score": pytest.approx((0.8 + 2 / 3) / 2),
    }
    numbers = LabelScores(NumberLabels(layout="stsb"), np.array([[0, 0, 1, 1], [0, 1, 2, 2], [0, 2, 3, 3.5]]))
    pearson = np.corrcoef([1, 2, 3], [1, 2, 3.5])[0, 1]
    assert score({"dev": numbers}).value == pytest.approx((pearson + 1) / 2)
    alike = LabelScores(NumberLabels(layout="stsb"), np.array([[0, 0, 1, 2], [0, 1, 2, 2], [0, 2, 3, 2]]))
    assert (score({"dev": alike}).value, score({"dev": alike}).error) == (0, 0)
    plain = LabelScores(ClassLabels(labels=["a", "b"]), found.rows)
    assert task_score({"dev": plain}, plain) is None


def test_mnli_is_the_mean_of_matched_and_mismatched() -> None:
    """Not the accuracy of all rows together: 0.6 here. Its error is that of two sets drawn apart."""
    parts = {"matched": classes("mnli", (0, 0), (1, 1), (2, 0)), "mismatched": classes("mnli", (0, 0), (1, 0))}
    assert score(parts).value == pytest.approx((2 / 3 + 1 / 2) / 2)
    draw = np.random.default_rng(0)
    parts = {
        name: classes("mnli", *((0, int(wrong)) for wrong in draw.random(400) < share))
        for name, share in (("matched", 0.2), ("mismatched", 0.3))
    }
    errors = [(part.metrics["accuracy"] * (1 - part.metrics["accuracy"]) / 400) ** 0.5 for part in parts.values()]
    assert score(parts).error == pytest.approx(np.hypot(*errors) / 2, rel=0.1)
    assert score(parts).items == 800


def test_every_metric_of_the_table_is_measured() -> None:
    pair = np.array([[0.0, 0, 0, 0], [0.0, 1, 1, 1]])
    candidates = np.array([[0.0, 0, 1, 0.5, 1, 1], [0.0, 1, 0, -0.5, 1, 1]])
    for name, task in benchmarks().items():
        kind = NumberLabels(layout="stsb") if name == "stsb" else ClassLabels.model_validate({"layout": name})
        rows = candidates if name in ("copa", "multirc", "record") else pair
        assert set(task.metrics) <= set(LabelScores(kind, rows).metrics), name
