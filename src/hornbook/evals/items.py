"""Scores of a task that has items: means with standard errors, and the values of each item for comparisons."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import xxhash
from jaxtyping import Bool, Float, Int

from hornbook.evals.task import summary_of


@dataclass(frozen=True)
class ItemScores:
    """Values of items by the name of the measurement, which is their mean."""

    values: Mapping[str, Float[np.ndarray, " items"]]
    """A measurement may be of some items alone."""
    digest: str
    """Hash of the items: values with equal digests are of the same items, in the same order."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """What is said besides, such as how many prompts were cut."""
    sizes: Int[np.ndarray, " items"] | None = None
    """Where `bits_per_byte` is measured, bytes of each item: its values are bits over their mean."""
    overall: Mapping[str, float | str] = field(default_factory=dict)
    """Measurements of all items together, which are no means: BLEU."""

    @property
    def summary(self) -> str:
        """`accuracy 0.7500 +- 0.0685, 40 items`."""
        return summary_of(self.as_dict())

    def of(self, kept: Bool[np.ndarray, " items"]) -> dict[str, Float[np.ndarray, " kept"]]:
        """The values that some items alone have, of measurements of all items."""
        found = {name: values[kept] for name, values in self.values.items() if len(values) == len(kept)}
        if self.sizes is not None and "bits_per_byte" in found:
            found["bits_per_byte"] *= self.sizes.mean() / self.sizes[kept].mean()
        return found

    def as_dict(self) -> dict[str, float | int | str]:
        """Means, and behind each its standard error under the name with `_se`."""
        found: dict[str, float | int | str] = dict(self.overall)
        for name, values in self.values.items():
            found[name], found[f"{name}_se"] = mean_and_error(values)
        items = max((len(values) for values in self.values.values()), default=0)
        return found | {"items": items} | dict(self.counts) | {"digest": self.digest}


def mean_and_error(values: Float[np.ndarray, " n"]) -> tuple[float, float]:
    """Mean, and its standard error (of a sample, n - 1); NaN where there are too few."""
    if not len(values):
        return math.nan, math.nan
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return float(values.mean()), error


def digest_of(*parts: object) -> str:
    """Hash of the items of a task, as hex; lists and texts, whose repr says all."""
    return xxhash.xxh3_64_hexdigest(repr(parts).encode())
