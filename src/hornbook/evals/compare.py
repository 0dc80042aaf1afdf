"""Two models on the same items: paired differences, their standard errors and bootstrap intervals.

Items of text are whole documents, which are independent of each other as rows are not, and which are the same under
any tokenizer. A difference is that of the first model less that of the second.
"""

import functools
import math
import operator
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from hornbook.errors import UsageError
from hornbook.evals.evaluate import Report, ValidationScores
from hornbook.evals.items import CorpusMetric, ItemScores, mean_and_error, spread
from hornbook.evals.labels import LabelScores
from hornbook.evals.loss import LossScores
from hornbook.evals.suites import TaskScore, task_score

RESAMPLES = 2000
"""Samples of the bootstrap."""
_CHUNK = 1 << 22
"""Numbers drawn at once."""


@dataclass(frozen=True)
class Difference:
    """Of a measurement on items that both models were asked."""

    first: float
    second: float
    difference: float
    se: float
    """Standard error of the mean of paired differences."""
    low: float
    """Ends of the interval that holds 95 % of bootstrap means (Efron's percentiles)."""
    high: float
    items: int

    @property
    def certain(self) -> bool:
        """Whether the interval is on one side of zero."""
        return self.low > 0 or self.high < 0


def paired(
    first: Float[np.ndarray, " items"],
    second: Float[np.ndarray, " items"],
    sizes: Float[np.ndarray, " items"] | None = None,
) -> Difference:
    """Difference of the means over the same items, in the same order; sizes: as of `mean_and_error`."""
    change = first - second
    mean, error = mean_and_error(change, sizes)
    low, high = _bootstrap(change, np.ones(len(change)) if sizes is None else sizes / sizes.mean())
    return Difference(float(first.mean()), float(second.mean()), mean, error, low, high, len(change))


def _bootstrap(values: Float[np.ndarray, " items"], sizes: Float[np.ndarray, " items"]) -> tuple[float, float]:
    """2.5th and 97.5th percentile of the means of samples drawn with replacement, over the mean sizes of each."""
    draw, means = np.random.default_rng(0), np.empty(RESAMPLES)
    rows = max(_CHUNK // len(values), 1)
    for first in range(0, RESAMPLES, rows):
        part = means[first : first + rows]
        drawn = draw.integers(len(values), size=(len(part), len(values)))
        part[:] = values[drawn].mean(1) / sizes[drawn].mean(1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(low), float(high)


def compare(first: Report, second: Report) -> dict[str, Any]:
    """By source, of all sources together and by task, the differences of their measurements; reports may have no text.

    What was not asked of both in the same form has a reason in the place of differences; `unpaired` are the documents
    of each source that are left out for it. Raises UsageError where no document is in both.
    """
    pairs = {
        name: _pair(score, second.by_source[name])
        for name, score in first.by_source.items()
        if name in second.by_source
    }
    shared = {name: pair for name, pair in pairs.items() if pair.documents}
    if not shared and first.by_source:
        raise UsageError("the models were scored on no document that both read: compare models on the same --data")
    found = {name: pair.differences() for name, pair in shared.items()}
    parts: list[Any] = [*shared.values()]  # of one kind
    whole = {"all": functools.reduce(operator.add, parts).differences()} if parts else {}
    unpaired = {name: pair.unpaired for name, pair in pairs.items() if any(pair.unpaired.values())}
    left_out = {"unpaired": unpaired} if unpaired else {}
    tasks = {name: _task(first.tasks[name], second.tasks.get(name)) for name in first.tasks}
    return {"sources": found, **whole, **_benchmark(shared), **left_out, "tasks": tasks}


@dataclass(frozen=True)
class _Texts:
    """Losses of documents that both models scored; those of several sources add up."""

    rows: Float[np.ndarray, "documents 5"]
    """Nats by both models, bytes, and tokens of both."""
    unpaired: Mapping[str, int]

    @property
    def documents(self) -> int:
        return len(self.rows)

    def __add__(self, other: "_Texts") -> "_Texts":
        return _Texts(np.concatenate([self.rows, other.rows]), {})

    def differences(self) -> dict[str, Any]:
        """Bits per byte of all documents, and where the tokenizers differ tokens per byte (their fertility).

        Those of each document are over the mean bytes of a document.
        """
        sizes, tokens = self.rows[:, 2], self.rows[:, 3:] / self.rows[:, 2].mean()
        bits = self.rows[:, :2] / math.log(2) / sizes.mean()
        found = {"bits_per_byte": asdict(paired(bits[:, 0], bits[:, 1], sizes))}
        if (tokens[:, 0] != tokens[:, 1]).any():
            found["tokens_per_byte"] = asdict(paired(tokens[:, 0], tokens[:, 1], sizes))
        return found


@dataclass(frozen=True)
class _Labels:
    """Labels of documents that both models scored; those of several sources add up."""

    first: LabelScores
    second: LabelScores
    unpaired: Mapping[str, int]

    @property
    def documents(self) -> int:
        return self.first.documents

    def __add__(self, other: "_Labels") -> "_Labels":
        return _Labels(self.first + other.first, self.second + other.second, {})

    def differences(self) -> dict[str, Any]:
        """Of the loss and of each metric."""
        ours, theirs = self.first.resampled, self.second.resampled
        return {name: asdict(_overall(each, theirs[name])) for name, each in ours.items()}


def _pair(first: ValidationScores, second: ValidationScores) -> _Texts | _Labels:
    """The documents that both models scored, by their number in the source.

    `unpaired`: documents that one model alone scored, and those of which they read other labels, as where a row of one
    tokenizer cuts them sooner.
    """
    if isinstance(first, LossScores) and isinstance(second, LossScores):
        ours, theirs = first.documents, second.documents
        shared, here, there = np.intersect1d(ours[:, 0], theirs[:, 0], return_indices=True)
        rows = np.column_stack([ours[here, 1], theirs[there, 1], ours[here, 3], ours[here, 2], theirs[there, 2]])
        return _Texts(rows, _left_out(len(shared), len(ours), len(theirs)))
    if not isinstance(first, LabelScores) or not isinstance(second, LabelScores):
        raise UsageError("one model predicts text and the other labels: nothing that both measure")
    if first.kind != second.kind:
        raise UsageError("the models were scored on other labels: compare models on the data of one run")
    (ours, our_labels), (theirs, their_labels) = (
        np.unique(each.rows[:, 1], return_counts=True) for each in (first, second)
    )
    shared, here, there = np.intersect1d(ours, theirs, return_indices=True)
    same = our_labels[here] == their_labels[there]
    left_out = _left_out(len(shared), len(ours), len(theirs)) | {"other_labels": int((~same).sum())}
    return _Labels(first.of(shared[same]), second.of(shared[same]), left_out)


def _left_out(shared: int, ours: int, theirs: int) -> dict[str, int]:
    return {"first_alone": ours - shared, "second_alone": theirs - shared}


def _benchmark(shared: Mapping[str, _Texts | _Labels]) -> dict[str, Any]:
    """The difference of the scores of a benchmark's task, where the labels are those of one."""
    pairs = {name: pair for name, pair in shared.items() if isinstance(pair, _Labels)}
    if not pairs:
        return {}
    sides = ({name: getattr(pair, side) for name, pair in pairs.items()} for side in ("first", "second"))
    ours, theirs = (task_score(side, functools.reduce(operator.add, side.values())) for side in sides)
    if ours is None or theirs is None:
        return {}
    return {"benchmark": {"task": ours.task, "score": asdict(_overall(ours, theirs))}}


def _task(first: Any, second: Any) -> Mapping[str, Any]:
    if second is None:
        return {"reason": "the second model was not asked"}
    if not isinstance(first, ItemScores) or not isinstance(second, ItemScores):
        return {"reason": "this task keeps no values of items"}
    if first.digest != second.digest:
        return {"reason": "the items differ, as they do where they are tokens and the tokenizers differ"}
    whole = {name: asdict(_overall(each, second.overall[name])) for name, each in first.overall.items()}
    items = {
        name: asdict(paired(values, second.values[name], first.sizes.get(name)))
        for name, values in first.values.items()
        if len(values)
    }
    return whole | items


def _overall(first: CorpusMetric | TaskScore, second: CorpusMetric | TaskScore) -> Difference:
    """Of measurements of all items together, by paired bootstrap: the same samples of both."""
    change = first.resampled() - second.resampled()
    change = change[np.isfinite(change)]
    low, high = np.percentile(change, [2.5, 97.5]).tolist() if len(change) else (math.nan, math.nan)
    difference = first.value - second.value
    return Difference(first.value, second.value, difference, spread(change), low, high, first.items)
