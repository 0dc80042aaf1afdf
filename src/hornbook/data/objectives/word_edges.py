"""Whether a word may go on at the start and at the end of a token, for whole-word masking.

Words are runs of letters and digits. Chinese, Japanese, Thai, Lao, Burmese and Khmer put no spaces between words, so
there each character is one, as in BERT's tokenizer for Chinese. Punctuation and symbols are no letters in any script.

Tokens of bytes may begin or end inside a character. The parts of a character belong together, and its lead byte tells
the script; where that byte is in the token before, following letters count as the same word. A token that ends one
character and starts another, which is a word by itself, starts a word: else such tokens would chain words together.
"""

import re
import unicodedata
from functools import lru_cache
from typing import NamedTuple

from hornbook.text.tokenizer.bpe.tables import byte_characters

ALONE = (
    (0x0E00, 0x0EFF),  # Thai, Lao
    (0x1000, 0x109F),  # Myanmar
    (0x1780, 0x17FF),  # Khmer
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),  # iteration mark, closing mark, zero
    (0x3040, 0x312F),  # hiragana, katakana, bopomofo
    (0x31A0, 0x31FF),  # more bopomofo, strokes, katakana
    (0x3400, 0x4DBF),  # ideographs
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0xFF66, 0xFF9F),  # katakana of half width
    (0x1AFF0, 0x1B16F),  # more kana
    (0x20000, 0x323AF),  # more ideographs
)
"""First and last code points of characters that are words by themselves."""

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_LEAST_LEAD = 0xC0


class Edges(NamedTuple):
    """Of a token."""

    begins_inside: bool
    """It continues the word before it, if that may go on."""
    ends_inside: bool
    """The word may go on after it."""


def edges_of_text(token: str) -> Edges:
    """Of a token that is spelled as text; `<0x4E>` is a byte."""
    if byte := _BYTE_TOKEN.fullmatch(token):
        return edges_of_bytes(bytes([int(byte[1], 16)]))
    return Edges(goes_on(token[0]), goes_on(token[-1]))


def edges_of_alphabet(token: str) -> Edges:
    """Of a token of a byte-level tokenizer, in GPT-2's alphabet of bytes; other characters are kept."""
    table = _bytes_by_character()
    return edges_of_bytes(b"".join(table.get(letter, letter.encode()) for letter in token))


def edges_of_bytes(data: bytes) -> Edges:
    """Of a token whose bytes are `data`, not empty: UTF-8, perhaps cut at both ends."""
    leads = [place for place, byte in enumerate(data) if not 0x80 <= byte < _LEAST_LEAD]
    if not leads:
        return Edges(True, True)
    first, last = data[leads[0] : leads[1] if len(leads) > 1 else len(data)], data[leads[-1] :]
    return Edges(_goes_on(last if leads[0] > 0 else first), _goes_on_after(last))


def goes_on(character: str) -> bool:
    """Whether a character is part of a word that other characters are part of too."""
    point = ord(character)
    if any(first <= point <= last for first, last in ALONE):
        return False
    return character.isalnum() or unicodedata.category(character).startswith("M")


def _goes_on_after(character: bytes) -> bool:
    """The same for the last character of a token: of one that is cut the rest must follow."""
    return len(character) < _length(character[0]) or _goes_on(character)


def _goes_on(character: bytes) -> bool:
    """The same for a character that may be cut at its end: it is taken for the last that begins so."""
    whole = character[: _length(character[0])].ljust(_length(character[0]), b"\xbf")
    try:
        return goes_on(whole.decode())
    except UnicodeDecodeError:
        return False


def _length(lead: int) -> int:
    return 1 if lead < _LEAST_LEAD else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4


@lru_cache(maxsize=1)
def _bytes_by_character() -> dict[str, bytes]:
    return {letter: bytes([byte]) for byte, letter in enumerate(byte_characters())}
