"""Words: each definition against a slow spelling of it in Python, on drawn text and on text made to be hard."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.text.refinery.words.characters import CODE_POINTS, DIGIT, LETTER, SPACE, kinds
from hornbook.text.refinery.words.words import DEFINITIONS, word_bounds
from tests.text.refinery.running import least_seconds

HARD = "ab\u00e9 .,'\u2019_1\u0663\u00bd\t\n\u00a0\u200b\u200d\u2028\u3000\u0301\u3099"
ASIAN = "\u65e5\u3042\u30ab\u30fb\u30fc\ud55c\U00020000\U0001f600"
TEXTS = st.text(st.one_of(st.sampled_from(HARD + ASIAN), st.characters(codec="utf-8")), max_size=40)


def words(text: str, definition: str) -> list[str]:
    data = text.encode()
    starts, ends = word_bounds(np.frombuffer(data, np.uint8), definition)
    return [data[start:end].decode() for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M" or character in "\u200c\u200d"


def in_word(character: str) -> bool:
    kind = unicodedata.category(character)
    return character.isalpha() or character.isnumeric() or kind == "Pc" or is_mark(character)


def is_alone(character: str) -> bool:
    code = ord(character)
    single = 0x3400 <= code <= 0x4DBF or 0x4E00 <= code <= 0x9FFF or 0xF900 <= code <= 0xFAFF
    rare = code in (0x3005, 0x3006, 0x3007) or 0x1B001 <= code <= 0x1B11F or 0x20000 <= code <= 0x3FFFD
    return single or rare or 0x3041 <= code <= 0x3096 or 0x309D <= code <= 0x309F


def is_katakana(character: str) -> bool:
    code = ord(character)
    common = 0x30A1 <= code <= 0x30FA or 0x30FC <= code <= 0x30FF
    return common or 0x31F0 <= code <= 0x31FF or 0xFF66 <= code <= 0xFF9F


def joins(mark: str, before: str, after: str) -> bool:
    if is_alone(before) or is_alone(after) or is_mark(after):
        return False
    letters = before.isalpha() and after.isalpha() and mark in ".'\u2019"
    return letters or (before.isdecimal() and after.isdecimal() and mark in ".,")


def plain_words(text: str, definition: str) -> list[str]:
    """The definitions as they are worded, one character after the other."""
    if definition == "whitespace":
        return text.split()
    found: list[str] = []
    base = ""  # what the marks of the word stand on; "" outside of words
    for place, character in enumerate(text):
        if not in_word(character):
            after = text[place + 1 : place + 2]
            if base and after and joins(character, base, after):
                found[-1] += character
            else:
                base = ""
            continue
        apart = is_alone(base or "a") or is_alone(character) or is_katakana(base or "a") != is_katakana(character)
        if not base or (definition == "cjk" and apart and not is_mark(character)):
            found.append(character)
            base = character
        else:
            found[-1] += character
            base = base if is_mark(character) else character
    return found


@given(text=TEXTS)
@pytest.mark.parametrize("definition", DEFINITIONS)
def test_words_are_those_of_the_plain_spelling(text: str, definition: str) -> None:
    assert words(text, definition) == plain_words(text, definition)


def test_the_choice_decides() -> None:
    text = "don't f(x). 1,000.5 \u65e5\u672c\u306e\u30c6\u30b9\u30c8 \ud55c\uad6d\uc5b4"
    assert words(text, "whitespace") == text.split()
    plain = ["don't", "f", "x", "1,000.5"]
    assert words(text, "unicode") == [*plain, "\u65e5\u672c\u306e\u30c6\u30b9\u30c8", "\ud55c\uad6d\uc5b4"]
    assert words(text, "cjk") == [*plain, "\u65e5", "\u672c", "\u306e", "\u30c6\u30b9\u30c8", "\ud55c\uad6d\uc5b4"]


def test_kinds_are_those_of_python() -> None:
    table = kinds()
    for code in range(CODE_POINTS):
        character = chr(code)
        bits = bool(table[code] & SPACE), bool(table[code] & LETTER), bool(table[code] & DIGIT)
        assert bits == (character.isspace(), character.isalpha(), character.isdecimal()), hex(code)


@pytest.mark.parametrize("definition", DEFINITIONS)
@pytest.mark.parametrize("unit", ["a", "a ", "'", "a'", "\u0301", "e\u0301", "\u65e5", "\n", "1.", "\u3000"])
def test_time_is_linear(definition: str, unit: str) -> None:
    def seconds(size: int) -> float:
        data = np.frombuffer((unit * size).encode(), np.uint8)
        return least_seconds(lambda: word_bounds(data, definition))

    seconds(10)
    assert seconds(400_000) < 40 * seconds(40_000) + 0.01


@pytest.mark.parametrize("data", [b"\xff", b"\xe3\x81", b"a\xf0\x9f", b"\xc3", b"\x80\x80"])
def test_broken_utf8_is_read_inside_its_bounds(data: bytes) -> None:
    for definition in DEFINITIONS:
        starts, ends = word_bounds(np.frombuffer(data, np.uint8), definition)
        assert all(0 <= start < end <= len(data) for start, end in zip(starts, ends, strict=True))
