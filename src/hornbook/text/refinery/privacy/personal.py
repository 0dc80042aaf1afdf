"""Personal data: one pass finds anchors, patterns and check digits decide about the text there."""

import ipaddress
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from hornbook.text.config.content import PERSONAL
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.privacy import anchors, patterns
from hornbook.text.refinery.step import Edit

_STREET_NAME = "(?:[A-Z\u00c0-\u00de][\\w'.\u2019-]{0,24})"
_STREET_AFTER = re.compile(  # 12 Main Street; 12 bis, rue de la Paix
    rf"\d{{1,5}}[A-Za-z]?(?:(?: (?:[NSEW]\.?|North|South|East|West))? {_STREET_NAME}(?: {_STREET_NAME}){{0,2}} "
    r"(?:Street|St\.?|Road|Rd\.?|Avenue|Ave\.?|Lane|Ln\.?|Drive|Dr\.?|Boulevard|Blvd\.?|Terrace|Crescent|Square|Close)"
    r"(?!\w)(?:,? (?:Apt|Suite|Unit|#)\.? ?\w{1,5})?"
    r"|(?: ?(?:bis|ter))?,? (?:rue|avenue|boulevard|impasse|all\u00e9e|quai|chemin|cours|place|route) "
    rf"(?:(?:de la|de l'|de|des|du|d'|la|le) ?)?{_STREET_NAME}(?:[ -]{_STREET_NAME}){{0,3}})"
)
_STREET_BEFORE = re.compile(  # Hauptstrasse 12; Calle Mayor, 12; Via Roma 12
    "(?:(?:[A-Z\u00c4\u00d6\u00dc][a-z\u00e4\u00f6\u00fc\u00df]{1,24}(?:stra\u00dfe|strasse|str\\.|gasse|allee|platz|weg|damm|ufer|straat|laan|plein|gracht))"
    rf"|{_STREET_NAME} (?:Stra\u00dfe|Strasse|Allee|Platz|Weg|Straat|Laan)"
    "|(?:Calle|Avenida|Avda\\.|Plaza|Paseo|Via|Viale|Piazza|Corso|Rua|Pra\u00e7a|Travessa|ul\\.|al\\."
    "|\u0443\u043b\\.|\u0443\u043b\u0438\u0446\u0430|\u043f\u0440\\.|\u043f\u0440\u043e\u0441\u043f\u0435\u043a\u0442) "
    r"(?:(?:de la|de los|de|del|della|dei|do|da|dos|das|di) )?"
    "(?:[A-Z\u00c0-\u00de\u0104-\u017b\u0410-\u042f][\\w'.-]{1,24})"
    "(?: (?:(?:de|da|do|di|del) )?[A-Z\u00c0-\u00de\u0410-\u042f][\\w'.-]{1,24}){0,3})"
    "(?:,? (?:n\u00ba |n\\. |nr\\. |\u0434\\. ?)?)\\Z"
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
        return (None if self.config.action == "drop" else self._redact(data, spans)), counts

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

    def _redact(self, data: bytes, spans: Spans) -> str:
        parts, last = [], 0
        for start, end, kind in spans:
            parts += [data[last:start], self._placeholders[kind]]
            last = end
        return b"".join([*parts, data[last:]]).decode("utf-8")
