"""Gopher's, FineWeb's, mC4's and C4's rules for documents; `rules.toml` lists them, `hornbook.text.config.rules` names
the papers. A step drops a document for the first rule, in the published order, that it breaks.
"""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.text.refinery.quality.statistics import Settings, Statistics
from hornbook.text.refinery.step import Columns, Decision

_RULES: dict[str, dict[str, list[str]]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@dataclass(frozen=True, slots=True)
class Rule:
    """A bound on a column, or on the ratio of two."""

    key: str
    """Key of the threshold in the configuration."""
    reason: str
    part: str
    whole: str = ""
    """Column that the part is divided by; 0/0 counts as 0."""

    def values(self, columns: Columns) -> np.ndarray:
        """float64 [rows]: what is compared with the threshold; `columns` without the measurer's name."""
        part = columns[self.part].astype(np.float64)
        if not self.whole:
            return part
        whole = columns[self.whole]
        return np.divide(part, whole, out=np.where(part > 0, np.inf, 0.0), where=whole != 0)

    def breaks(self, values: np.ndarray, threshold: float) -> np.ndarray:
        """bool [rows]: which documents break the rule."""
        return values > threshold if self.key.startswith("max_") else values < threshold


class Rules(Decision):
    """The rules of one kind of step over the columns of `Statistics`."""

    also: tuple[str, ...] = ()
    """Columns that it reads beside those of its rules."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.rules = [Rule(key, *entry) for key, entry in _RULES[config.kind].items()]
        measurer = Statistics(Settings.of(config))
        columns = (*self.also, *(each for rule in self.rules for each in (rule.part, rule.whole) if each))
        self.measurers = (measurer,)
        self.needs = tuple(f"{measurer.name}.{column}" for column in dict.fromkeys(columns))
        self.reasons = tuple(rule.reason for rule in self.rules)

    def measured(self, columns: Columns) -> Columns:
        """Columns without the measurer's name."""
        return {name.partition(".")[2]: columns[name] for name in self.needs}

    def decide(self, columns: Columns) -> np.ndarray:
        """The number of the first rule that is broken."""
        measured = self.measured(columns)
        found = np.zeros(len(columns[self.needs[0]]), np.uint8)
        for number, rule in enumerate(self.rules, start=1):
            threshold = getattr(self.config, rule.key)
            if threshold is not None:
                found[rule.breaks(rule.values(measured), threshold) & (found == 0)] = number
        return found

    def sweep(self, columns: Columns, key: str) -> Callable[[Any], np.ndarray]:
        """The other rules are evaluated once, so that many values cost little more than one."""
        rule = next((rule for rule in self.rules if rule.key == key), None)
        if rule is None:
            return super().sweep(columns, key)
        others = self.config.model_copy(update={key: None}).build().decide(columns) == 0
        values = rule.values(self.measured(columns))
        return lambda threshold: others & ~rule.breaks(values, threshold)
