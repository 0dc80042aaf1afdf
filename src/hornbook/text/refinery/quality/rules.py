"""Gopher's, FineWeb's, mC4's and C4's rules for documents, and C4's for lines.

`rules.toml` lists the former, `hornbook.text.config.rules` names the papers. A step drops a document for the first
rule, in the published order, that it breaks. C4's are those of its paper and the details of its published code.
"""

import re
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.text.ingest.document import Document
from hornbook.text.refinery.quality.statistics import Settings, Statistics
from hornbook.text.refinery.step import Columns, Decision, Edit

_RULES: dict[str, dict[str, list[str]]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")


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


class C4Lines(Edit):
    """Removes lines that are not sentences of prose, and trims the others."""

    counters = ("citations", "long_word", "no_ending", "few_words", "javascript", "policy")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._endings, self._policies = tuple(config.endings), tuple(config.policies)
        self._split_at = max(config.min_words - 1, 0)

    def edit(self, document: Document) -> tuple[str, tuple[int, ...]]:
        """The kept lines; the number of citations removed, and of lines removed by each rule."""
        text, counts, kept = document.text, dict.fromkeys(self.counters, 0), []
        citations = self.config.citations and "[" in text
        lower = text.lower()
        phrases = citations or any(phrase in lower for phrase in ("javascript", *self._policies))  # [1] may part one
        limit = len(text) if self.config.max_word_length is None else self.config.max_word_length
        endings, least, split_at, no_ending = self._endings, self.config.min_words, self._split_at, 0
        for each in text.splitlines():
            line = words = each.strip()
            if len(line) > limit and max(map(len, line.split())) > limit:
                counts["long_word"] += 1
                continue
            if citations and "[" in line:
                line, number = _CITATION.subn("", line)
                counts["citations"] += number
            if endings and (not line.endswith(endings) or line.endswith("...")):
                no_ending += 1
            elif len(words.split(None, split_at)) < least:
                counts["few_words"] += 1
            elif phrases and (phrase := self._phrase(line.lower())):
                counts[phrase] += 1
            else:
                kept.append(line)
        counts["no_ending"] = no_ending
        return "\n".join(kept).strip(), tuple(counts.values())

    def _phrase(self, lower: str) -> str:
        """The rule on phrases that a line in lower case breaks, or ""."""
        if "lorem ipsum" in lower:
            return ""
        if self.config.javascript and "javascript" in lower:
            return "javascript"
        found = "{" not in lower and any(phrase in lower for phrase in self._policies)
        return "policy" if found else ""


class C4(Rules):
    """Drops filler, code, and documents of few sentences."""

    also = ("lorem_ipsum_line", "curly_bracket_line")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.reasons = ("C4: lorem ipsum", "C4: curly bracket", *self.reasons)

    def decide(self, columns: Columns) -> np.ndarray:
        """1 for filler or 2 for a bracket, by the first such line (in one line: filler); 3 for too few sentences."""
        measured = self.measured(columns)
        lorem, curly = (measured[name] for name in self.also)
        has_lorem, has_curly = self.config.lorem_ipsum & (lorem >= 0), self.config.curly_bracket & (curly >= 0)
        found = super().decide(columns)
        found[found != 0] = 3
        found[has_curly] = 2
        found[has_lorem & (~has_curly | (lorem <= curly))] = 1
        return found
