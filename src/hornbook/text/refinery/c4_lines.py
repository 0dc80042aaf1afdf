"""C4's rules for lines (Raffel et al. 2020, section 2.2, and the details of its published code)."""

import re
from typing import Any

from hornbook.text.document import Document
from hornbook.text.refinery.step import Edit

_CITATION = re.compile(r"\[(?:\d*|edit|citation needed)\]")


class C4Lines(Edit):
    """Removes lines that are no sentences of prose, and trims the others."""

    counters = ("citations", "long_word", "no_ending", "few_words", "javascript", "policy")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._endings, self._policies = tuple(config.endings), tuple(config.policies)

    def edit(self, document: Document) -> tuple[str, tuple[int, ...]]:
        """The lines that stay; for each rule how many it removed, after how many citations were."""
        counts = dict.fromkeys(self.counters, 0)
        kept: list[str] = []
        for each in document.text.splitlines():
            line, words = each.strip(), each.split()
            limit = self.config.max_word_length
            if limit is not None and len(line) > limit and max(map(len, words)) > limit:
                counts["long_word"] += 1
                continue
            if self.config.citations and "[" in line:
                line, number = _CITATION.subn("", line)
                counts["citations"] += number
            broken = self._broken_rule(line, len(words))
            if broken:
                counts[broken] += 1
            else:
                kept.append(line)
        return "\n".join(kept).strip(), tuple(counts.values())

    def _broken_rule(self, line: str, words: int) -> str:
        if self._endings and (not line.endswith(self._endings) or line.endswith("...")):
            return "no_ending"
        if words < self.config.min_words:
            return "few_words"
        lower = line.lower()
        if "lorem ipsum" in lower:
            return ""
        if self.config.javascript and "javascript" in lower:
            return "javascript"
        if "{" not in line and any(phrase in lower for phrase in self._policies):
            return "policy"
        return ""
