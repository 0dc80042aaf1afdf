"""A classifier of documents trained on a user's samples: logistic regression on hashed words and pairs of words.

The features are those of fastText's classifier (Joulin et al. 2016, arXiv 1607.01759), words and pairs of adjacent
words hashed into a table, without its hidden layer: two classes need none. A document's vector is the square roots of
its counts, normalised. AdaGrad takes the samples in the order of their hashes, so the same samples give the same file.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.durable import write_atomic
from hornbook.kernels.compiled import GOLDEN, compiled
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import Columns, Decision
from hornbook.text.refinery.words.words import HashedWords, hashed_words

BUCKETS = 1 << 18
_LEAST = 10
"""Fewest samples of each kind."""
_HELD_OUT = 5
"""Every fifth sample is held out for evaluation."""
_BATCH = 512


@compiled
def _features(hashes, first, last, counts, used):
    """Count words and pairs of a document in `counts`; lists the buckets in `used` and returns how many."""
    total = 0
    mask = np.uint64(counts.size - 1)
    for i in range(first, last):
        for pair in range(2):
            value = hashes[i]
            if pair:
                if i + 1 == last:
                    break
                value = (value * GOLDEN) ^ hashes[i + 1]
            bucket = np.int64((value ^ (value >> np.uint64(29))) & mask)
            if counts[bucket] == 0:
                used[total] = bucket
                total += 1
            counts[bucket] += 1
    return total


@compiled
def _score(weights, bias, counts, used, total):
    """The document's log odds; leaves its normalised vector in `counts`."""
    norm = 0.0
    for j in range(total):
        norm += counts[used[j]]
    scale = 1.0 / np.sqrt(max(norm, 1.0))
    odds = bias
    for j in range(total):
        counts[used[j]] = np.sqrt(counts[used[j]]) * scale
        odds += weights[used[j]] * counts[used[j]]
    return odds


@compiled
def _clear(counts, used, total):
    for j in range(total):
        counts[used[j]] = 0


@compiled
def _scores(hashes, firsts, weights, bias, out):
    counts = np.zeros(weights.size, np.float64)
    used = np.empty(2 * hashes.size + 1, np.int64)
    for n in range(out.size):
        total = _features(hashes, firsts[n], firsts[n + 1], counts, used)
        out[n] = 1.0 / (1.0 + np.exp(-_score(weights, bias, counts, used, total)))
        _clear(counts, used, total)


@compiled
def _train(hashes, firsts, labels, order, epochs, rate, weights):
    """AdaGrad (Duchi et al. 2011) on the log loss; both kinds weigh the same. Returns the bias."""
    counts = np.zeros(weights.size, np.float64)
    squares = np.full(weights.size, 1e-8)
    used = np.empty(2 * hashes.size + 1, np.int64)
    bias, bias_square = 0.0, 1e-8
    share = labels[order].mean()
    for _ in range(epochs):
        for n in order:
            total = _features(hashes, firsts[n], firsts[n + 1], counts, used)
            odds = _score(weights, bias, counts, used, total)
            weight = 0.5 / share if labels[n] else 0.5 / (1 - share)
            slope = weight * (1.0 / (1.0 + np.exp(-odds)) - labels[n])
            for j in range(total):
                gradient = slope * counts[used[j]]
                squares[used[j]] += gradient * gradient
                weights[used[j]] -= rate * gradient / np.sqrt(squares[used[j]])
            bias_square += slope * slope
            bias -= rate * slope / np.sqrt(bias_square)
            _clear(counts, used, total)
    return bias


@dataclass(frozen=True, slots=True, eq=False)
class TrainedClassifier:
    """A classifier."""

    weights: np.ndarray
    """float32 [buckets]."""
    bias: float
    words: str
    """The definition of a word."""

    def scores(self, texts: Sequence[str]) -> np.ndarray:
        """float64 [texts]: probability that each is of the good kind."""
        out = np.empty(len(texts))
        for first in range(0, len(texts), _BATCH):
            words = hashed_words(texts[first : first + _BATCH], self.words, plain=True)
            _scores(words.hashes, words.firsts, self.weights, self.bias, out[first : first + _BATCH])
        return out

    def save(self, path: Path) -> None:
        """Write the file."""
        facts = json.dumps({"bias": self.bias, "words": self.words})  # one value: safetensors does not order several
        write_atomic(path, save({"weights": self.weights}, metadata={"classifier": facts}))

    @staticmethod
    def load(path: Path) -> "TrainedClassifier":
        """Read the file. Raises UsageError where it is missing, IntegrityError where it is not a classifier."""
        try:
            with safe_open(path, framework="numpy") as file:
                facts = json.loads(file.metadata()["classifier"])
                return TrainedClassifier(file.get_tensor("weights"), float(facts["bias"]), facts["words"])
        except FileNotFoundError as error:
            raise UsageError(f"{path}: no such classifier; train one with `hornbook prepare classifier`") from error
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise IntegrityError(f"{path} is not a classifier of hornbook: {error}") from error


@dataclass(frozen=True, slots=True)
class ClassifierReport:
    """Results of a classifier on the samples held out."""

    good: int
    bad: int
    """Samples held out."""
    accuracy: float
    """Mean of the accuracies on both kinds, at a threshold of 0.5."""
    auc: float
    """Probability that a good sample scores higher than a bad one."""


def train(
    good: Sequence[str], bad: Sequence[str], words: str, *, epochs: int = 8
) -> tuple[TrainedClassifier, ClassifierReport]:
    """Train on two kinds of samples; a repeated text counts once. Raises UsageError where they are too few."""
    sides = [sorted(dict.fromkeys(texts), key=_hash) for texts in (good, bad)]
    for name, texts in zip(("good", "bad"), sides, strict=True):
        if len(texts) < _LEAST:
            raise UsageError(f"{len(texts)} different {name} samples: at least {_LEAST} are needed, better thousands")
    both = set(sides[0]) & set(sides[1])
    if both:
        raise UsageError(f"{len(both)} samples are on both sides, for example {min(both)[:60]!r}")
    first, second = ([text for n, text in enumerate(texts) if n % _HELD_OUT] for texts in sides)
    judged = _fit(first, second, words, epochs)
    report = _judge(judged, sides[0][::_HELD_OUT], sides[1][::_HELD_OUT])
    return _fit(sides[0], sides[1], words, epochs), report


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode())


def _fit(good: Sequence[str], bad: Sequence[str], words: str, epochs: int) -> TrainedClassifier:
    texts = [*good, *bad]
    found: HashedWords = hashed_words(texts, words, plain=True)
    labels = np.array([1.0] * len(good) + [0.0] * len(bad))
    order = np.array(sorted(range(len(texts)), key=lambda n: _hash(texts[n])), np.int64)
    weights = np.zeros(BUCKETS)
    bias = _train(found.hashes, found.firsts, labels, order, epochs, 0.2, weights)
    return TrainedClassifier(weights.astype(np.float32), float(bias), words)


def _judge(model: TrainedClassifier, good: Sequence[str], bad: Sequence[str]) -> ClassifierReport:
    high, low = model.scores(good), model.scores(bad)
    accuracy = (np.mean(high > 0.5) + np.mean(low <= 0.5)) / 2
    ranks = np.searchsorted(np.sort(low), high, "left") + np.searchsorted(np.sort(low), high, "right")
    return ClassifierReport(len(good), len(bad), float(accuracy), float(ranks.mean() / (2 * len(low))))


class Classifier(Decision):
    """Drops documents whose score is on the wrong side of the threshold."""

    columns = {"score": "float64"}  # noqa: RUF012 - read only

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.reasons = (config.name or f"score of {Path(config.model).stem}",)
        self._model = TrainedClassifier.load(Path(config.model))

    def measure(self, documents: Sequence[Document]) -> Columns:
        """The score of each document."""
        return {"score": self._model.scores([document.text for document in documents])}

    def decide(self, columns: Columns) -> np.ndarray:
        """1 on the wrong side."""
        above = columns[f"{self.name}.score"] > self.config.threshold
        return (~above if self.config.keep == "above" else above).astype(np.uint8)
