"""The classifier: against a slow reference and logistic regression's optimum, repeatable, and as a step."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from hornbook.errors import IntegrityError, UsageError
from hornbook.text.config.scores import ClassifierConfig
from hornbook.text.refinery.scores.classifier import TrainedClassifier, train
from tests.text.refinery.running import prepare

GOOD = ["the", "model", "learns", "from", "measured", "results", "and", "careful", "proofs", "of", "each", "theorem"]
BAD = ["buy", "cheap", "pills", "now", "click", "here", "best", "casino", "bonus", "winner", "free", "offer"]
BOTH = ["a", "of", "and", "to", "in", "it", "is", "for", "on", "with", "as", "at", "by"]


def samples(kind: Sequence[str], count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choice(kind if draw.random() < 0.3 else BOTH) for _ in range(40)) for _ in range(count)]


@pytest.fixture(scope="module")
def model() -> TrainedClassifier:
    found, report = train(samples(GOOD, 200, 1), samples(BAD, 100, 2), "whitespace")
    assert (report.good, report.bad) == (40, 20)
    assert report.accuracy > 0.95
    assert report.auc > 0.99
    return found


def test_what_it_never_saw_is_told_apart(model: TrainedClassifier):
    good, bad = model.scores(samples(GOOD, 50, 3)), model.scores(samples(BAD, 50, 4))
    assert np.median(good) > 0.9
    assert np.median(bad) < 0.1
    assert good.min() > bad.max()


def test_a_score_is_of_the_document_alone(model: TrainedClassifier):
    texts = [*samples(GOOD, 5, 5), "", "one", *samples(BAD, 600, 6)]
    together = model.scores(texts)
    assert together[:8].tolist() == [model.scores([text])[0] for text in texts[:8]]
    bias = 1 / (1 + np.exp(-model.bias))
    assert together[5] == pytest.approx(bias)


def test_labels_at_random_teach_nothing():
    texts = samples(BOTH, 400, 7)
    _, report = train(texts[:200], texts[200:], "whitespace")
    assert 0.3 < report.auc < 0.7


def test_the_same_samples_make_the_same_file_in_any_order(tmp_path: Path):
    good, bad = samples(GOOD, 30, 8), samples(BAD, 30, 9)
    train(good, bad, "unicode")[0].save(tmp_path / "a")
    train(good[::-1] + good[:5], bad[::-1], "unicode")[0].save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    loaded = TrainedClassifier.load(tmp_path / "a")
    assert loaded.words == "unicode"
    assert loaded.scores(good).tolist() == train(good, bad, "unicode")[0].scores(good).tolist()


def test_bad_samples_and_files_are_named(tmp_path: Path):
    with pytest.raises(UsageError, match="3 different bad samples: at least 10"):
        train(samples(GOOD, 20, 1), ["x", "y", "z", "x"], "cjk")
    with pytest.raises(UsageError, match="1 samples are on both sides, for example 'same'"):
        train([*samples(GOOD, 20, 1), "same"], [*samples(BAD, 20, 1), "same"], "cjk")
    with pytest.raises(UsageError, match="no such classifier"):
        TrainedClassifier.load(tmp_path / "absent")
    (tmp_path / "broken").write_bytes(b"x" * 100)
    with pytest.raises(IntegrityError, match="is not a classifier"):
        TrainedClassifier.load(tmp_path / "broken")


@pytest.mark.parametrize("keep", ["above", "below"])
def test_as_a_step_it_keeps_one_side(tmp_path: Path, model: TrainedClassifier, keep: str):
    model.save(tmp_path / "quality")
    good, bad = samples(GOOD, 10, 11), samples(BAD, 10, 12)
    step = ClassifierConfig.model_validate({"model": str(tmp_path / "quality"), "keep": keep})
    kept, signals = prepare(tmp_path, [step], good + bad)
    assert kept == (good if keep == "above" else bad)
    assert set(signals["reason"].to_pylist()) == {"kept", "score of quality"}
    assert signals["classifier.score"].to_pylist() == model.scores(good + bad).tolist()


def test_another_classifier_in_the_same_file_is_another_corpus(tmp_path: Path, model: TrainedClassifier):
    step = ClassifierConfig(model=str(tmp_path / "quality"))
    model.save(tmp_path / "quality")
    prepare(tmp_path, [step], samples(GOOD, 10, 11))
    TrainedClassifier(model.weights, model.bias + 1, model.words).save(tmp_path / "quality")
    with pytest.raises(UsageError, match="other settings"):
        prepare(tmp_path, [step], samples(GOOD, 10, 11))
