"""Personal data: one pass finds anchors, patterns and check digits decide about the text there."""

import ipaddress
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from hornbook.text.config.content import PERSONAL
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.privacy import anchors, patterns
from hornbook.text.refinery.privacy.check_digits import PATTERNS
from hornbook.text.refinery.step import Edit

_STREETS = {name: text.replace("<name>", PATTERNS["streets"]["name"]) for name, text in PATTERNS["streets"].items()}
_STREET_AFTER = re.compile(rf"\d{{1,5}}[A-Za-z]?(?:{_STREETS['english']}|{_STREETS['french']})")
_STREET_BEFORE = re.compile(
    rf"(?:{_STREETS['compound']}|{_STREETS['germanic']}|{_STREETS['others']}){_STREETS['number']}\Z"
)
_HOUSE_NUMBER = re.compile(rb"\d{1,4}(?:[a-z](?!\w)|[/-]\d{1,3})?(?![\w:%]|[.,]\d)")
_STREET_BYTES = 80


def street(data: bytes, place: int, least: int) -> patterns.Found:
    """The address with its house number at `place`: the street follows it (English, French) or precedes it.

    A heuristic for nine languages: it needs the word for street and a name with a capital, so it misses many addresses
    and is rarely wrong.
    """
    found = _STREET_AFTER.match(data[place : place + _STREET_BYTES].decode("utf-8", "ignore"))
    if found:
        return place, place + len(found.group().encode()), "address"
    house = _HOUSE_NUMBER.match(data, place, place + 12)
    if house is None:
        return None
    before = data[max(least, place - _STREET_BYTES) : place].decode("utf-8", "ignore")
    found = _STREET_BEFORE.search(before)
    if found is None or (found.start() > 0 and before[found.start() - 1].isalnum()):
        return None
    return place - len(found.group().encode()), house.end(), "address"


MATCHERS: dict[int, Callable[[bytes, int, int], patterns.Found]] = {
    anchors.AT: patterns.email,
    anchors.NUMBER: patterns.number,
    anchors.LETTERS: patterns.lettered,
    anchors.COLON: patterns.ipv6,
    anchors.KEY: patterns.key,
    anchors.ASSIGNED: patterns.assigned,
    anchors.HOUSE: street,
}
"""Kind of anchor -> matcher."""

Spans = list[tuple[int, int, str]]


class Personal(Edit):
    """Finds personal data; redacts it, counts it, or drops the document."""

    counters = PERSONAL
    reasons = ("personal data",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._anchors = np.empty((1024, 2), dtype=np.int64)  # kept from text to text
        self._kinds = frozenset(config.kinds)
        self._placeholders = {
            kind: config.placeholders.get(kind, f"<{kind.upper()}>").encode("utf-8") for kind in config.kinds
        }

    def edit(self, document: Document) -> tuple[str | None, tuple[int, ...]]:
        """The text with placeholders, and how often each kind was found."""
        data = document.text.encode("utf-8")
        spans = self.find(data)
        counts = tuple(sum(kind == each for _, _, kind in spans) for each in PERSONAL)
        if not spans or self.config.action == "detect":
            return document.text, counts
        if self.config.action == "drop":
            return None, counts
        parts, last = [], 0
        for start, end, kind in spans:
            parts += [data[last:start], self._placeholders[kind]]
            last = end
        return b"".join([*parts, data[last:]]).decode("utf-8"), counts

    def find(self, data: bytes) -> Spans:
        """(start, end, kind) in UTF-8 text, in order, without overlaps, of the kinds asked for; in linear time.

        What is found of another kind still hides what it overlaps.
        """
        view = np.frombuffer(data, dtype=np.uint8)
        while (count := anchors.find_anchors(view, anchors.CLASSES, anchors.STREETS, self._anchors)) < 0:
            self._anchors = np.empty((4 * len(self._anchors), 2), dtype=np.int64)
        spans: Spans = []
        least = 0
        for anchor, kind in self._anchors[:count].tolist():
            if anchor >= least and (found := MATCHERS[kind](data, anchor, least)):
                spans.append(found)
                least = found[1]
        return [span for span in spans if self._counts(data, *span)]

    def _counts(self, data: bytes, start: int, end: int, kind: str) -> bool:
        if kind == "ip" and self.config.ip == "public":
            return "ip" in self._kinds and ipaddress.ip_address(data[start:end].decode()).is_global
        return kind in self._kinds
