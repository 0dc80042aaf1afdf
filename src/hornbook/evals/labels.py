"""Scores of labels over validation texts: the loss, and the metrics that the kind of labels is published with."""

import functools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.data.corpus import Corpus
from hornbook.data.packing.plan import Plan
from hornbook.data.shards.shard_table import ShardTable
from hornbook.data.vocabulary import load_vocabulary
from hornbook.evals import metrics
from hornbook.evals.task import LabelModel, score_batches
from hornbook.model.heads.label_answers import best_span
from hornbook.parallel.world import World
from hornbook.text.config.labels import (
    CANDIDATES,
    ClassLabels,
    LabelsConfig,
    NumberLabels,
    PreferenceLabels,
    SpanLabels,
    TagLabels,
)
from hornbook.text.tokenizer.label_tokens import CHOOSABLE


@dataclass(frozen=True)
class LabelScores:
    """Expected and predicted values, label by label; scores of parts add up to the scores of the whole."""

    kind: LabelsConfig
    rows: np.ndarray
    """float64 [labels, columns]: loss, number of the document, then expected and predicted; of answers exact match, F1.

    Of candidates: loss, number of the question, `hornbook.evals.metrics.CANDIDATE_COLUMNS`.
    """

    def __add__(self, other: "LabelScores") -> "LabelScores":
        theirs = other.rows.copy()
        theirs[:, 1] += self.rows[:, 1].max(initial=-1) + 1
        return LabelScores(self.kind, np.concatenate([self.rows, theirs]))

    @property
    def loss(self) -> float:
        """Mean loss of a label; NaN where there was none."""
        return float(np.nanmean(self.rows[:, 0])) if np.isfinite(self.rows[:, 0]).any() else math.nan

    @property
    def summary(self) -> str:
        """The metrics for people."""
        return ", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in self.metrics.items())

    def as_dict(self) -> dict[str, float | int]:
        """Measurements as `eval --json` prints them."""
        return {"loss": self.loss, **self.metrics, "labels": len(self.rows)}

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """Metrics by name; empty where there was nothing to score."""
        if not len(self.rows):
            return {}
        if isinstance(self.kind, ClassLabels) and self.kind.layout in CANDIDATES:
            questions = self.rows[:, 1].astype(int)
            return metrics.candidate_metrics(self.kind.layout, questions, self.rows[:, 2:])
        return self._label_metrics()

    def _label_metrics(self) -> dict[str, float]:
        expected, predicted = np.hsplit(self.rows[:, 2:], 2)
        match self.kind:
            case ClassLabels(multiple=True):
                return _several(expected, predicted)
            case PreferenceLabels():  # rewards of the chosen and of the rejected answer
                better = float((expected > predicted).mean())
                return {"accuracy": better, "margin": float((expected - predicted).mean())}
            case NumberLabels():
                columns = list(zip(expected.T, predicted.T, strict=True))
                return {
                    name: float(np.mean([metric(*column) for column in columns]))
                    for name, metric in (("pearson", metrics.pearson), ("spearman", metrics.spearman))
                }
            case SpanLabels():
                return {"exact_match": float(expected.mean()), "f1": float(predicted.mean())}
            case TagLabels(labels=labels) if any(label.startswith("B-") for label in labels):
                return _accuracy(expected, predicted) | metrics.entity_scores(self._sentences(labels))
        assert isinstance(self.kind, ClassLabels | TagLabels)
        table = metrics.confusion(expected[:, 0].astype(int), predicted[:, 0].astype(int), len(self.kind.labels))
        by_label = metrics.f1_of_labels(table)
        binary = {"f1": float(by_label[1])} if len(by_label) == 2 else {}
        return (
            _accuracy(expected, predicted)
            | binary
            | {"macro_f1": metrics.macro_f1(table), "mcc": metrics.matthews(table)}
        )

    def _sentences(self, labels: list[str]) -> Iterator[tuple[list[str], list[str]]]:
        edges = np.flatnonzero(np.diff(self.rows[:, 1])) + 1
        for part in np.split(self.rows[:, 2:].astype(int), edges):
            yield [labels[number] for number in part[:, 0]], [labels[number] for number in part[:, 1]]


def _accuracy(expected: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    return {"accuracy": float((expected == predicted).all(1).mean())}


def _several(expected: np.ndarray, predicted: np.ndarray) -> dict[str, float]:
    """Accuracy of whole sets; F1 over all labels together (micro)."""
    both = 2 * float((expected * predicted).sum()) / max(float(expected.sum() + predicted.sum()), 1.0)
    return _accuracy(expected, predicted) | {"f1": both}


@dataclass(frozen=True)
class RewardTask:
    """How often a reward model prefers the chosen answers of a source."""

    name: str
    """The source."""
    batches: Iterable[Batch]
    """Both answers of a pair are in one row, the chosen one first, with a weight at the last token of each."""

    def score(self, model: LabelModel, world: World) -> LabelScores:
        """Each pair counts once."""

        def rewards(batch: Batch) -> np.ndarray:
            found = model.outputs(batch)[1][..., 0].cpu().double()[batch.weights > 0].view(-1, 2)
            losses = -torch.nn.functional.logsigmoid(found[:, :1] - found[:, 1:])
            return torch.cat([losses, torch.zeros_like(losses), found], 1).numpy()

        return LabelScores(PreferenceLabels(), score_batches(world, self.batches, 4, rewards)[:, 1:])


@dataclass(frozen=True)
class LabelTask:
    """How well a model predicts the labels of a source."""

    name: str
    """The source."""
    batches: Iterable[Batch]
    corpus: Corpus
    plan: Plan
    """Which documents the rows of the batches hold."""

    def score(self, model: LabelModel, world: World) -> LabelScores:
        """Each label that has a weight counts once."""
        kind = self.corpus.labels
        assert kind is not None
        reader = _Reader(self.corpus, self.name, self.plan, kind)
        rows = score_batches(
            world, self.batches, _columns(kind), lambda batch: reader.rows(batch, *model.outputs(batch))
        )
        which = [2] if _has_candidates(kind) else [0, 2]  # candidates of a question may lie in several batches
        _, documents = np.unique(rows[:, which], axis=0, return_inverse=True)
        rows[:, 2] = documents.reshape(-1)
        return LabelScores(kind, rows[:, 1:])


def _has_candidates(kind: LabelsConfig) -> bool:
    return isinstance(kind, ClassLabels) and kind.layout in CANDIDATES


def _columns(kind: LabelsConfig) -> int:
    if _has_candidates(kind):
        return 2 + metrics.CANDIDATE_COLUMNS
    if isinstance(kind, NumberLabels):
        return 2 + 2 * len(kind.values)
    return 2 + 2 * (len(kind.labels) if isinstance(kind, ClassLabels) and kind.multiple else 1)


class _Reader:
    """Turns the outputs of a head for a batch into rows of `LabelScores`."""

    def __init__(self, corpus: Corpus, source: str, plan: Plan, kind: LabelsConfig) -> None:
        self._stream, self._plan, self._kind = corpus.validation[source], plan, kind
        self._shards = ShardTable(corpus, [self._stream])
        self._tokenizer = load_vocabulary(corpus).tokenizer

    def rows(self, batch: Batch, losses: Tensor, outputs: Tensor) -> np.ndarray:
        """One for each label, in the order of tokens; documents are numbered within the batch."""
        if isinstance(self._kind, SpanLabels):
            return self._answer_rows(batch, losses.cpu(), outputs.cpu())
        if _has_candidates(self._kind):
            return self._candidate_rows(batch, losses.cpu(), outputs.cpu())
        counts = batch.weights > 0
        sizes = [size for row in batch.document_lengths for size in row]
        documents = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)).view(counts.shape)[counts]
        predicted = outputs.cpu()[counts].double()
        if batch.values is not None:
            expected = batch.values[counts].double()
            predicted = predicted if isinstance(self._kind, NumberLabels) else (predicted > 0).double()
        else:
            expected, predicted = batch.targets[counts][:, None].double(), predicted.argmax(1, keepdim=True).double()
        own = torch.stack([losses.cpu()[counts].double(), documents.double()], 1)
        return torch.cat([own, expected, predicted], 1).numpy()

    def _pieces(self, batch: Batch) -> Iterator[tuple[int, int, slice, dict[str, Any]]]:
        """(number, row, columns, facts) of each document in a batch."""
        offsets, begins, sizes = self._plan.segments(batch.samples.numpy())
        for row in range(len(batch.document_lengths)):
            column = 0
            for piece in range(offsets[row], offsets[row + 1]):
                part = slice(column, column + int(sizes[piece]))
                ((number, document, _, _),) = self._shards.documents(0, int(begins[piece]), 1)
                yield piece, row, part, self._stream.shards[number].document(document)
                column = part.stop

    def _candidate_rows(self, batch: Batch, losses: Tensor, outputs: Tensor) -> np.ndarray:
        found: list[tuple[float, ...]] = []
        for _, row, part, facts in self._pieces(batch):
            for place in (batch.weights[row, part].nonzero().reshape(-1) + part.start).tolist():
                wrong, right = outputs[row, place].double().tolist()
                scores = metrics.answer_scores(facts["context"], facts["answers"])
                label = float(batch.targets[row, place])
                question = float(metrics.question_of(facts["id"]))
                found.append((float(losses[row, place]), question, label, right - wrong, *scores))
        return np.array(found).reshape(-1, 2 + metrics.CANDIDATE_COLUMNS)

    def _answer_rows(self, batch: Batch, losses: Tensor, outputs: Tensor) -> np.ndarray:
        found: list[tuple[float, ...]] = []
        for piece, row, part, facts in self._pieces(batch):
            predicted = self._answer(facts["context"], outputs[row, part], batch.targets[row, part])
            loss = float(losses[row, part.start]) if batch.weights[row, part.start] else math.nan
            found.append((loss, float(piece), *metrics.answer_scores(predicted, facts["answers"])))
        return np.array(found).reshape(-1, 4)

    def _answer(self, context: str, outputs: Tensor, marks: Tensor) -> str:
        """Text of the best span; none where "no answer", at the first token, scores no less."""
        choosable = (marks & CHOOSABLE) > 0
        choosable[0] = False
        best = best_span(outputs, choosable)
        if best is None or best.score <= float(outputs[0].float().sum()):
            return ""
        ((_, spans),) = self._tokenizer.encode_offsets([context])
        first = int(choosable.int().argmax())
        return context[spans[best.first - first][0] : spans[best.last - first][1]]
