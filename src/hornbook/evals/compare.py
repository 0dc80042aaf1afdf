"""Two models on the same items: paired differences, their standard errors and bootstrap intervals.

Items of text are whole documents, which are independent of each other as rows are not, and which are the same under
any tokenizer. A difference is that of the first model less that of the second.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from hornbook.errors import UsageError
from hornbook.evals.evaluate import Report
from hornbook.evals.items import CorpusMetric, ItemScores, mean_and_error
from hornbook.evals.loss import LossScores

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

    What was not asked of both in the same form has a reason in the place of differences. Raises UsageError where the
    reports are of labels, or no document is in both.
    """
    sources = {name: _documents(first, second, name) for name in first.by_source if name in second.by_source}
    shared = [part for part in sources.values() if part is not None]
    if not shared and first.by_source:
        raise UsageError("the models were scored on no document that both read: compare models on the same --data")
    found = {name: _bits(part) for name, part in sources.items() if part is not None}
    whole = {"all": _bits(np.concatenate(shared))} if shared else {}
    tasks = {name: _task(first.tasks[name], second.tasks.get(name)) for name in first.tasks}
    return {"sources": found, **whole, "tasks": tasks}


def _documents(first: Report, second: Report, source: str) -> np.ndarray | None:
    """[documents, 5]: nats by both models, bytes, and tokens of both, of documents that both scored."""
    one, other = first.by_source[source], second.by_source[source]
    if not isinstance(one, LossScores) or not isinstance(other, LossScores):
        raise UsageError("--compare is of models that predict text: scores of labels are not compared")
    ours, theirs = one.documents, other.documents
    _, here, there = np.intersect1d(ours[:, 0], theirs[:, 0], return_indices=True)
    if not len(here):
        return None
    return np.column_stack([ours[here, 1], theirs[there, 1], ours[here, 3], ours[here, 2], theirs[there, 2]])


def _bits(documents: np.ndarray) -> dict[str, dict[str, float]]:
    """Bits per byte of all documents, and where the tokenizers differ tokens per byte (their fertility).

    Those of each document are over the mean bytes of a document.
    """
    sizes, tokens = documents[:, 2], documents[:, 3:] / documents[:, 2].mean()
    bits = documents[:, :2] / math.log(2) / sizes.mean()
    found = {"bits_per_byte": asdict(paired(bits[:, 0], bits[:, 1], sizes))}
    if (tokens[:, 0] != tokens[:, 1]).any():
        found["tokens_per_byte"] = asdict(paired(tokens[:, 0], tokens[:, 1], sizes))
    return found


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


def _overall(first: CorpusMetric, second: CorpusMetric) -> Difference:
    """Of measurements of all items together, by paired bootstrap: the same samples of both."""
    change = first.resampled() - second.resampled()
    low, high = np.percentile(change, [2.5, 97.5]).tolist()
    error, items = float(change.std(ddof=1)), len(first.statistics)
    return Difference(first.value, second.value, first.value - second.value, error, low, high, items)
