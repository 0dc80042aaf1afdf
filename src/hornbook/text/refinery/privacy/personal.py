"""Personal data: one pass finds anchors, patterns and check digits decide about the text there."""

import ipaddress
from typing import Any

import numpy as np

from hornbook.text.config.content import PERSONAL
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.privacy.anchors import CLASSES, STREETS, find_anchors
from hornbook.text.refinery.privacy.patterns import MATCHERS
from hornbook.text.refinery.step import Edit

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
        return (None if self.config.action == "drop" else self._redact(data, spans)), counts

    def find(self, data: bytes) -> Spans:
        """(start, end, kind) in UTF-8 text, in order, without overlaps, of the kinds asked for; in linear time.

        What is found of another kind still hides what it overlaps.
        """
        view = np.frombuffer(data, dtype=np.uint8)
        while (count := find_anchors(view, CLASSES, STREETS, self._anchors)) < 0:
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

    def _redact(self, data: bytes, spans: Spans) -> str:
        parts, last = [], 0
        for start, end, kind in spans:
            parts += [data[last:start], self._placeholders[kind]]
            last = end
        return b"".join([*parts, data[last:]]).decode("utf-8")
