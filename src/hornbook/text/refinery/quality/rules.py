"""The published rules as tables: what is compared with which key of the configuration, and what a person reads.

A step drops a document for the first rule, in the published order, that it breaks.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from hornbook.text.refinery.quality.statistics import Settings, Statistics
from hornbook.text.refinery.step import Columns, Decision


@dataclass(frozen=True, slots=True)
class Rule:
    """A bound on a column, or on the ratio of two."""

    key: str
    """Of the threshold in the configuration."""
    reason: str
    part: str
    whole: str = ""
    """Column that the part is divided by; 0/0 counts as 0."""

    @property
    def columns(self) -> tuple[str, ...]:
        """What it looks at."""
        return (self.part, self.whole) if self.whole else (self.part,)

    @property
    def is_most(self) -> bool:
        """Whether the threshold is the most that is allowed, not the least."""
        return self.key.startswith("max_")

    def values(self, columns: Columns) -> np.ndarray:
        """float64 [rows]: what is compared with the threshold; `columns` without the measurer's name."""
        part = columns[self.part].astype(np.float64)
        if not self.whole:
            return part
        whole = columns[self.whole]
        return np.divide(part, whole, out=np.where(part > 0, np.inf, 0.0), where=whole != 0)

    def breaks(self, values: np.ndarray, threshold: float) -> np.ndarray:
        """bool [rows]: where a document goes."""
        return values > threshold if self.is_most else values < threshold


class Rules(Decision):
    """A step that is a table of rules over `Statistics`."""

    rules: ClassVar[tuple[Rule, ...]]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        measurer = Statistics(self.settings())
        self.measurers = (measurer,)
        self.needs = tuple(f"{measurer.name}.{column}" for column in self.columns())
        self.reasons = tuple(rule.reason for rule in self.rules)

    def columns(self) -> Sequence[str]:
        """Names of the columns it looks at, without the measurer's."""
        return list(dict.fromkeys(column for rule in self.rules for column in rule.columns))

    def settings(self) -> Settings:
        """What its configuration says about measuring."""
        return Settings(words=self.config.words)

    def measured(self, columns: Columns) -> Columns:
        """Columns without the measurer's name."""
        return {name.partition(".")[2]: columns[name] for name in self.needs}

    def threshold(self, rule: Rule) -> float | None:
        """What the configuration says; None where the rule is off."""
        return getattr(self.config, rule.key)

    def decide(self, columns: Columns) -> np.ndarray:
        """The number of the first rule that is broken."""
        measured = self.measured(columns)
        found = np.zeros(len(columns[self.needs[0]]), np.uint8)
        for number, rule in enumerate(self.rules, start=1):
            threshold = self.threshold(rule)
            if threshold is not None:
                found[rule.breaks(rule.values(measured), threshold) & (found == 0)] = number
        return found

    def sweep(self, columns: Columns, key: str) -> Callable[[Any], np.ndarray]:
        """The other rules are asked once, so that many values cost little more than one."""
        rule = next((rule for rule in self.rules if rule.key == key), None)
        if rule is None:
            return super().sweep(columns, key)
        others = type(self)(self.config.model_copy(update={key: None})).decide(columns) == 0
        values = rule.values(self.measured(columns))
        return lambda threshold: others & ~rule.breaks(values, threshold)
