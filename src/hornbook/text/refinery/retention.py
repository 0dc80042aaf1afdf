"""How much stays for each value of a threshold, from stored columns alone: milliseconds for a million documents."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hornbook.errors import UsageError
from hornbook.text.refinery.rules import Rules
from hornbook.text.refinery.step import Columns


@dataclass(frozen=True, slots=True)
class Retention:
    """What stays, for one value of a threshold."""

    threshold: float
    documents: int
    bytes: int


def retention(
    step: Rules, columns: Columns, sizes: np.ndarray, key: str, thresholds: Sequence[float]
) -> list[Retention]:
    """What the whole step keeps for each value of one of its thresholds, the others being as they are.

    `columns` are its `needs` and `sizes` the bytes, int64 [rows], of the documents that come to it. Raises UsageError
    if the step has no such threshold.
    """
    rule = next((rule for rule in step.rules if rule.key == key), None)
    if rule is None:
        known = ", ".join(rule.key for rule in step.rules)
        raise UsageError(f"step {step.name!r} has no threshold {key!r}: it has {known}")
    without = type(step)(step.config.model_copy(update={key: None}))
    others = without.decide(columns) == 0
    values = rule.values(step.measured(columns))[others]
    remaining = sizes[others]
    found = []
    for threshold in thresholds:
        keeps = ~rule.breaks(values, threshold)
        found.append(Retention(threshold, int(np.count_nonzero(keeps)), int(remaining[keeps].sum())))
    return found
