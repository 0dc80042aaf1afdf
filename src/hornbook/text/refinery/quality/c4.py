"""C4's rules for lines and documents (Raffel et al. 2020, section 2.2, and the details of its published code)."""

import re
from typing import Any

import numpy as np

from hornbook.text.ingest.document import Document
from hornbook.text.refinery.quality.rules import Rules
from hornbook.text.refinery.step import Columns, Edit

_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")


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
