"""Boilerplate lines of web pages: cookies, rights, subscriptions, sharing, navigation; in nine languages."""

import re
import tomllib
from pathlib import Path

from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import Edit

_NETWORK = r"(?:facebook|twitter|x|linkedin|whatsapp|telegram)\b"
_KINDS = ("cookies", "subscribe", "share", "rights")
_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_BUTTONS, _HOME = "|".join(_TEXTS["buttons"]), "|".join(_TEXTS["home"])
_BETWEEN = "[|>\u00bb\u203a\u2022]"
_NAVIGATION = re.compile(
    rf"(?:{_BUTTONS})[.!\u2026>\u00bb ]{{0,4}}|(?:{_HOME})(?: ?{_BETWEEN} ?[^|>\u00bb\u203a\u2022]{{1,30}}){{1,9}}",
    re.IGNORECASE,
)
_LONGEST = 320


def _rules(kind: str) -> tuple[str, set[str], re.Pattern[str]]:
    """(kind, marks of which a text must contain one in lower case, pattern of the lines)."""
    marks, rules = zip(*_TEXTS[kind], strict=True)
    return kind, set(marks), re.compile("|".join(rules).replace("NETWORK", _NETWORK), re.IGNORECASE)


_RULES = [_rules(kind) for kind in _KINDS]


class Boilerplate(Edit):
    """Removes boilerplate lines, and counts them by kind."""

    counters = (*_KINDS, "navigation")

    def edit(self, document: Document) -> tuple[str, tuple[int, ...]]:
        small = document.text.lower()
        rules = [(kind, rule) for kind, marks, rule in _RULES if any(mark in small for mark in marks)]
        rules.append(("navigation", _NAVIGATION))
        counts = dict.fromkeys(self.counters, 0)
        kept = []
        for line in document.text.split("\n"):
            kind = self._kind(line.strip(), rules)
            if kind is None:
                kept.append(line)
            else:
                counts[kind] += 1
        return "\n".join(kept) if any(counts.values()) else document.text, tuple(counts.values())

    def _kind(self, line: str, rules: list[tuple[str, re.Pattern[str]]]) -> str | None:
        if not line or len(line) > _LONGEST or line.count(" ") >= self.config.max_words:
            return None
        for kind, rule in rules:
            if rule.fullmatch(line) if kind == "navigation" else rule.search(line):
                return kind
        return None
