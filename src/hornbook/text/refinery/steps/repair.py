"""Repairs of damaged Unicode: text read in the wrong encoding, leftover entities, invisible characters."""

import html
import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache

from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import Edit

_HIDDEN = re.compile(  # zero-width space, word joiner, byte order mark, bidirectional controls, soft hyphen
    "[\u200b\u2060-\u2064\ufeff\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069\u00ad]"
)
_JOINER = re.compile("(?<![\u0600-\u109f\u1780-\u17ff\U0001f000-\U0001ffff\u2600-\u27bf\ufe0f])[\u200c\u200d]")
_PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U0010fffd]")
_UNSEEN = re.compile("[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ue000-\uf8ff\ufeff\U000f0000-\U0010fffd]")
"""First characters of the three patterns above: most texts have none, and one search finds that out."""
_ENTITY = re.compile(r"&(?:[A-Za-z][A-Za-z0-9]{1,30}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});")
_QUOTES = (
    "\u00a0\u00ab\u00ae\u00b0\u00b2\u00b3\u00b9\u00bb\u2013\u2014\u2018\u2019\u201a"
    "\u201c\u201d\u201e\u2026\u2039\u203a\u2122"
)
"""Punctuation that may follow a letter in sound text."""
_C1 = (0x81, 0x8D, 0x8F, 0x90, 0x9D)

_TABLE = {bytes([code]).decode("cp1252"): code for code in range(0x80, 0x100) if code not in _C1}
_BYTES = {**_TABLE, **{chr(code): code for code in range(0x80, 0x100)}}
"""Character -> the byte that cp1252 (or Latin-1, where cp1252 has none) decodes to it."""

_NEXT = "".join(re.escape(text) for text, code in _BYTES.items() if code < 0xC0)
_SEQUENCE = rf"(?:[\u00c2-\u00df][{_NEXT}]|[\u00e0-\u00ef][{_NEXT}]{{2}}|[\u00f0-\u00f4][{_NEXT}]{{3}})"
_SEQUENCES = re.compile(_SEQUENCE + "+")
_ONE = re.compile(_SEQUENCE)
"""Characters whose bytes are complete UTF-8 sequences."""
_UNSAID = ("Cn", "Co", "Cs")


def _said(text: str) -> str:
    """Misread characters decoded as UTF-8; unchanged where that fails or gives unprintable characters."""
    try:
        said = bytes(_BYTES[each] for each in text).decode("utf-8")
    except UnicodeDecodeError:
        return text
    return said if all(unicodedata.category(each) not in _UNSAID for each in said) else text


_said_by_one = lru_cache(maxsize=4096)(_said)
"""Cached for single characters: a text repeats few of them, while runs may be as long as a text."""


def _is_certain(found: re.Match[str]) -> bool:
    """Whether the characters are certainly misread; an accented capital before a closing quote, say, may be meant."""
    text, before = found.group(), found.string[found.start() - 1 : found.start()]
    after = found.string[found.end() : found.end() + 1]
    quotes = any(each in _QUOTES for each in text[1:])
    if len(text) > 3 or (len(text) == 3 and not quotes) or any("\u0080" <= each < "\u00a0" for each in text):
        return True
    if len(text) == 3:
        return text[:2] == "\u00e2\u20ac" and not before.isupper()
    if text[0] in "\u00c2\u00c3":  # within a word, or where no quote could stand
        inside = before.islower() or (quotes and before.isalpha() and after.isalpha())
        return inside or (not before.isupper() and (text == "\u00c3\u00a0" or not quotes or after.isalpha()))
    return not quotes and not before.isupper() and text[0] in "\u00c4\u00c5\u00ce\u00cf\u00d0\u00d1\u00d7\u00d8\u00d9"


def _repaired(text: str) -> tuple[str, int]:
    """The repaired text and the number of repairs. Where one sequence is certain, all of the text was misread."""
    if not any(_said(found.group()) != found.group() and _is_certain(found) for found in _SEQUENCES.finditer(text)):
        return text, 0
    return _replaced(_ONE, _said_by_one, text)


def _replaced(pattern: re.Pattern[str], meaning: Callable[[str], str], text: str) -> tuple[str, int]:
    """The text with each match replaced by its meaning, and the number of matches that this changed."""
    count = 0

    def meant(found: re.Match[str]) -> str:
        nonlocal count
        new = meaning(found.group())
        count += new != found.group()
        return new

    return pattern.sub(meant, text), count


class Repair(Edit):
    """Repairs certain damage, and counts what it cannot repair."""

    counters = ("mojibake", "entities", "hidden", "private", "replacement")

    def edit(self, document: Document) -> tuple[str, tuple[int, ...]]:
        """The repaired text: private characters are removed, replacement characters are only counted."""
        text, misread = document.text, 0
        if not text.isascii():
            text, misread = _repaired(text)
            if misread:  # maybe twice
                text, count = _repaired(text)
                misread += count
        text, entities = self._entities(text)
        hidden = private = 0
        if not text.isascii() and _UNSEEN.search(text):
            text, hidden = _HIDDEN.subn("", text)
            text, joiners = _JOINER.subn("", text)
            hidden += joiners
            text, private = _PRIVATE.subn("", text)
        return text, (misread, entities, hidden, private, text.count("\ufffd"))

    def _entities(self, text: str) -> tuple[str, int]:
        if not self.config.entities or "&" not in text or "<" in text:
            return text, 0  # in text with markup, entities are meant
        return _replaced(_ENTITY, html.unescape, text)
