"""Scores of labels over validation texts: the loss, and the metrics that the kind of labels is published with."""

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hornbook.data.batch import Batch
from hornbook.data.corpus import Corpus
from hornbook.data.packing.plan import Plan, stream_ends
from hornbook.data.shards.shard_table import ShardTable
from hornbook.data.vocabulary import load_vocabulary
from hornbook.evals import metrics
from hornbook.evals.items import CorpusMetric, groups_of, sums_by
from hornbook.evals.metrics import LabelMetrics
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

_MOST_SUMS = 2**20
"""Sums of a label over groups of documents: of thousands of labels there are fewer groups."""


@dataclass(frozen=True)
class LabelScores:
    """Expected and predicted values, label by label; scores of parts add up to the scores of the whole."""

    kind: LabelsConfig
    rows: np.ndarray
    """float64 [labels, columns]: loss, number of the document in its source, then expected and predicted.

    Of answers exact match and F1 follow; of candidates the number is that of the question, and
    `hornbook.evals.metrics.CANDIDATE_COLUMNS` follow.
    """

    def __add__(self, other: "LabelScores") -> "LabelScores":
        ours, theirs = self.rows.copy(), other.rows.copy()
        ours[:, 1], theirs[:, 1] = self._documents, other._documents + self.documents
        return LabelScores(self.kind, np.concatenate([ours, theirs]))

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

    @property
    def errors(self) -> dict[str, float]:
        """Standard errors by the name of the measurement with `_se`, by bootstrap of documents; too slow for a loop."""
        return {f"{name}_se": metric.error for name, metric in self.resampled.items()}

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """Metrics by name; empty where there was nothing to score."""
        return self._formulas.of(self._statistics.sum(0)) if len(self.rows) else {}

    @functools.cached_property
    def resampled(self) -> dict[str, CorpusMetric]:
        """Loss and metrics, as functions of sums over documents, which are independent of each other as labels are not.

        Of candidates over questions.
        """
        if not len(self.rows):
            return {}
        losses = self.rows[:, :1]
        losses = np.concatenate([np.isfinite(losses), np.nan_to_num(losses)], 1)
        statistics = np.concatenate([sums_by(self._groups[self._documents], losses), self._statistics], 1)
        return {
            name: CorpusMetric(statistics, functools.partial(self._of, name), self.documents)
            for name in ("loss", *self.metrics)
        }

    @functools.cached_property
    def _statistics(self) -> np.ndarray:
        """What the metrics are functions of, by group of documents; float64 [groups, m]."""
        return self._formulas.statistics(self.rows[:, 2:], self._documents, self._groups)

    @functools.cached_property
    def _groups(self) -> np.ndarray:
        """The group of each document, from 0."""
        return groups_of(self.documents, max(_MOST_SUMS // max(len(getattr(self.kind, "labels", [])), 256), 256))

    def _of(self, name: str, sums: np.ndarray) -> float:
        if name == "loss":
            return float(sums[1] / sums[0]) if sums[0] else math.nan
        return self._formulas.of(sums[2:])[name]

    @property
    def documents(self) -> int:
        """Documents, or questions, that have labels."""
        return int(self._documents.max(initial=-1)) + 1

    def of(self, documents: np.ndarray) -> "LabelScores":
        """The labels of some documents, in ascending order of their numbers."""
        rows = self.rows[np.isin(self.rows[:, 1], documents)]
        return LabelScores(self.kind, rows[np.argsort(rows[:, 1], kind="stable")])

    @functools.cached_property
    def _documents(self) -> np.ndarray:
        """Number of the document of each label, counted from 0 among those that are there."""
        return np.unique(self.rows[:, 1], return_inverse=True)[1].reshape(-1)

    @functools.cached_property
    def _formulas(self) -> LabelMetrics:
        return _METRICS[self.kind.kind](self.kind)


def _of_classes(kind: ClassLabels) -> LabelMetrics:
    if kind.layout in CANDIDATES:
        return metrics.CANDIDATE_METRICS[kind.layout]
    return metrics.SeveralLabels() if kind.multiple else metrics.OneLabel(len(kind.labels))


def _of_tags(kind: TagLabels) -> LabelMetrics:
    names_entities = any(label.startswith("B-") for label in kind.labels)
    return metrics.Entities(kind.labels) if names_entities else metrics.OneLabel(len(kind.labels))


_METRICS: dict[str, Callable[[Any], LabelMetrics]] = {
    "classification": _of_classes,
    "regression": lambda _: metrics.Numbers(),
    "token_classification": _of_tags,
    "span": lambda _: metrics.Means(("exact_match", "f1")),
    "preference": lambda _: metrics.Preferred(("accuracy", "margin")),
}


@dataclass(frozen=True)
class RewardTask:
    """How often a reward model prefers the chosen answers of a source."""

    name: str
    """The source."""
    batches: Iterable[Batch]
    """Both answers of a pair are in one row, the chosen one first, with a weight at the last token of each."""
    corpus: Corpus
    plan: Plan
    """Which documents the rows of the batches hold, a pair each."""

    def score(self, model: LabelModel, world: World) -> LabelScores:
        """Each pair counts once."""
        ends = stream_ends(self.corpus.validation[self.name])

        def rewards(batch: Batch, outputs: Tensor) -> np.ndarray:
            found = outputs[..., 0].double()[batch.weights > 0].view(-1, 2)
            losses = -torch.nn.functional.logsigmoid(found[:, :1] - found[:, 1:])
            documents = _documents_of(batch, self.plan, ends)
            return np.concatenate([losses.numpy(), documents[:, None], found.numpy()], 1)

        return LabelScores(
            PreferenceLabels(),
            score_batches(world, self.batches, 4, lambda batch: model.outputs(batch)[1:], rewards)[:, 1:],
        )


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
        rows = score_batches(world, self.batches, _columns(kind), model.outputs, reader.rows)
        return LabelScores(kind, rows[:, 1:])


def _documents_of(batch: Batch, plan: Plan, ends: np.ndarray) -> np.ndarray:
    """Numbers in their source of the documents that the rows of a batch hold, one for each piece."""
    _, begins, _ = plan.segments(batch.samples.numpy())
    return np.searchsorted(ends, begins, side="right")


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
        self._shards, self._ends = ShardTable(corpus, [self._stream]), stream_ends(self._stream)
        self._tokenizer = load_vocabulary(corpus).tokenizer

    def rows(self, batch: Batch, losses: Tensor, outputs: Tensor) -> np.ndarray:
        """One for each label, in the order of tokens."""
        if isinstance(self._kind, SpanLabels):
            return self._answer_rows(batch, losses.cpu(), outputs.cpu())
        if _has_candidates(self._kind):
            return self._candidate_rows(batch, losses.cpu(), outputs.cpu())
        counts = batch.weights > 0
        documents = self._documents(batch, counts)
        predicted = outputs.cpu()[counts].double()
        if batch.values is not None:
            expected = batch.values[counts].double()
            predicted = predicted if isinstance(self._kind, NumberLabels) else (predicted > 0).double()
        else:
            expected, predicted = batch.targets[counts][:, None].double(), predicted.argmax(1, keepdim=True).double()
        own = torch.stack([losses.cpu()[counts].double(), documents], 1)
        return torch.cat([own, expected, predicted], 1).numpy()

    def _documents(self, batch: Batch, counts: Tensor) -> Tensor:
        """Number of the document of each label, float64."""
        offsets, _, sizes = self._plan.segments(batch.samples.numpy())
        numbers = _documents_of(batch, self._plan, self._ends)
        found = torch.full(counts.shape, math.nan, dtype=torch.float64)
        for row, (first, end) in enumerate(itertools.pairwise(offsets)):
            own = np.repeat(numbers[first:end], sizes[first:end])
            found[row, : len(own)] = torch.from_numpy(own)
        return found[counts]

    def _pieces(self, batch: Batch) -> Iterator[tuple[int, int, slice, dict[str, Any]]]:
        """(number in the source, row, columns, facts) of each document in a batch."""
        offsets, begins, sizes = self._plan.segments(batch.samples.numpy())
        numbers = _documents_of(batch, self._plan, self._ends)
        for row in range(len(batch.document_lengths)):
            column = 0
            for piece in range(offsets[row], offsets[row + 1]):
                part = slice(column, column + int(sizes[piece]))
                ((number, document, _, _),) = self._shards.documents(0, int(begins[piece]), 1)
                yield int(numbers[piece]), row, part, self._stream.shards[number].document(document)
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
        for document, row, part, facts in self._pieces(batch):
            predicted = self._answer(facts["context"], outputs[row, part], batch.targets[row, part])
            loss = float(losses[row, part.start]) if batch.weights[row, part.start] else math.nan
            found.append((loss, float(document), *metrics.answer_scores(predicted, facts["answers"])))
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
