"""Scores of a task that has items: means with standard errors, and the values of each item for comparisons."""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import xxhash
from jaxtyping import Bool, Float, Int

from hornbook.evals.task import summary_of

RESAMPLES = 1000
"""Samples of the bootstrap of a `CorpusMetric`, as of sacrebleu's."""
GROUPS = 4096
"""Items that are drawn one by one; more of them are drawn in as many groups."""


def groups_of(items: int, most: int = GROUPS) -> Int[np.ndarray, " items"]:
    """A group for each item, of its own where `most` suffice; the same ones for every model.

    Sums of groups put together at random are as independent as items are, so samples of both vary alike, but samples of
    a few thousand groups cost the same for a million items.
    """
    return np.random.default_rng(0).permutation(items) % most if items > most else np.arange(items)


def sums_by(groups: Int[np.ndarray, " n"], values: Float[np.ndarray, "n m"]) -> Float[np.ndarray, "groups m"]:
    """Sums of the rows of each group."""
    return np.stack([np.bincount(groups, column) for column in values.T], 1)


@functools.lru_cache(maxsize=1)
def _draws(items: int, seed: int) -> Float[np.ndarray, "resamples items"]:
    """How often each item is in each sample."""
    drawn = np.random.default_rng(seed).integers(items, size=(RESAMPLES, items))
    return np.stack([np.bincount(each, minlength=items) for each in drawn]).astype(np.float64)


@dataclass(frozen=True)
class CorpusMetric:
    """A measurement of all items together that is no mean, such as BLEU: a function of the sums of their statistics."""

    statistics: Float[np.ndarray, "items n"] | Int[np.ndarray, "items n"]
    compute: Callable[[Float[np.ndarray, " n"]], float]
    grouped: int = 0
    """Number of items where statistics are of groups of them (`groups_of`)."""

    @property
    def items(self) -> int:
        """Number of items."""
        return self.grouped or len(self.statistics)

    @property
    def value(self) -> float:
        """Of all items."""
        return self.compute(self.statistics.sum(0))

    @property
    def error(self) -> float:
        """Standard error, by bootstrap."""
        return spread(self.resampled())

    def resampled(self, seed: int = 0) -> Float[np.ndarray, " resamples"]:
        """Of samples drawn with replacement, the same ones for every model (paired bootstrap; Koehn 2004)."""
        if self.items < 2:
            return np.full(RESAMPLES, math.nan)
        statistics = sums_by(groups_of(len(self.statistics)), self.statistics)
        sums = _draws(len(statistics), seed) @ statistics
        return np.array([self.compute(each) for each in sums])

    def of(self, kept: Bool[np.ndarray, " items"]) -> "CorpusMetric":
        """The same of some items."""
        return CorpusMetric(self.statistics[kept], self.compute)


@dataclass(frozen=True)
class ItemScores:
    """Values of items by the name of the measurement, which is their mean."""

    values: Mapping[str, Float[np.ndarray, " items"]]
    """A measurement may be of some items alone."""
    digest: str
    """Hash of the items: values with equal digests are of the same items, in the same order."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What is said besides, such as how many prompts were cut."""
    sizes: Mapping[str, Int[np.ndarray, " items"]] = field(default_factory=dict)
    """Of measurements that are ratios (`bits_per_byte`) the bytes of each item: values are over the mean of these."""
    overall: Mapping[str, CorpusMetric] = field(default_factory=dict)
    """Measurements of all items together."""
    signatures: Mapping[str, str] = field(default_factory=dict)
    """How those were computed."""

    @property
    def summary(self) -> str:
        """`accuracy 0.7500 +- 0.0685, 40 items`."""
        return summary_of(self.as_dict())

    def of(self, kept: Bool[np.ndarray, " items"]) -> dict[str, Float[np.ndarray, " kept"]]:
        """The values that some items alone have, of measurements of all items."""
        found = {name: values[kept] for name, values in self.values.items() if len(values) == len(kept)}
        for name, sizes in self.sizes.items():
            found[name] *= sizes.mean() / sizes[kept].mean()
        return found

    def as_dict(self) -> dict[str, float | int | str]:
        """Means, and behind each its standard error under the name with `_se`."""
        found: dict[str, float | int | str] = {}
        for name, metric in self.overall.items():
            found[name], found[f"{name}_se"] = metric.value, metric.error
        found |= self.signatures
        for name, values in self.values.items():
            found[name], found[f"{name}_se"] = mean_and_error(values, self.sizes.get(name))
        items = max((len(values) for values in self.values.values()), default=0)
        return found | {"items": items} | dict(self.counts) | {"digest": self.digest}


def mean_and_error(values: Float[np.ndarray, " n"], sizes: Int[np.ndarray, " n"] | None = None) -> tuple[float, float]:
    """Mean, and its standard error (of a sample, n - 1); NaN where there are too few.

    sizes: of a ratio, whose values are over the mean size. Its error is that of the residuals beside the ratio (delta
    method), for larger items have more of what is counted.
    """
    if not len(values):
        return math.nan, math.nan
    mean = float(values.mean())
    rest = values if sizes is None else values - mean * sizes / sizes.mean()
    return mean, float(rest.std(ddof=1)) / math.sqrt(len(rest)) if len(rest) > 1 else math.nan


def spread(samples: Float[np.ndarray, " resamples"]) -> float:
    """Standard deviation of the samples in which the measurement is defined; NaN where those are less than two."""
    found = samples[np.isfinite(samples)]
    return float(found.std(ddof=1)) if len(found) > 1 else math.nan


def digest_of(*parts: object) -> str:
    """Hash of the items of a task, as hex; lists and texts, whose repr says all."""
    return xxhash.xxh3_64_hexdigest(repr(parts).encode())
