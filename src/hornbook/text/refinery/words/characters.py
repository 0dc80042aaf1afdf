"""Kinds of characters as a table of bits by code point, and UTF-8 decoding, for kernels."""

import tomllib
import unicodedata
from functools import cache
from pathlib import Path

import numpy as np

from hornbook.kernels.compiled import compiled, load64

SPACE, WORD, DIGIT, LETTER, ALONE, KATAKANA, SYMBOL, MARK = (1 << bit for bit in range(8))
"""Whitespace as `str.isspace`; part of a word (letters, marks, numbers, `_`, joiners); decimal digit; letter as
`str.isalpha`; ideograph or Hiragana letter; Katakana; punctuation or control; combining mark."""

CODE_POINTS = 0x110000
_NEWLINES, _LOWEST, _HIGHEST = (np.uint64(byte * 0x0101010101010101) for byte in (0x0A, 0x01, 0x80))
_ASSIGNED = 0x40000
"""From here on Unicode has only selectors, tags and private characters: no letters, digits or whitespace."""
_RANGES = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def code_points(ranges: str) -> np.ndarray:
    """Code points of ranges in hexadecimal, such as `0021 061d-061f`."""
    pairs = [part.partition("-") for part in ranges.split()]
    return np.concatenate([np.arange(int(first, 16), int(last or first, 16) + 1) for first, _, last in pairs])


def sentence_terminals() -> str:
    """Characters that end sentences in any script."""
    return "".join(map(chr, code_points(_RANGES["terminals"])))


def table_of(characters: str) -> np.ndarray:
    """uint8 [code points]: 1 for the characters."""
    table = np.zeros(CODE_POINTS, np.uint8)
    table[[ord(character) for character in characters]] = 1
    return table


@cache
def kinds() -> np.ndarray:
    """uint8 [code points]: the bits of each, by the Unicode version of the interpreter."""
    characters = np.arange(_ASSIGNED, dtype=np.uint32).view("U1")
    letters, numbers = np.strings.isalpha(characters), np.strings.isnumeric(characters)
    spaces = np.strings.isspace(characters)
    table = np.zeros(CODE_POINTS, np.uint8)
    table[:_ASSIGNED] = spaces * np.uint8(SPACE) | np.strings.isdecimal(characters) * np.uint8(DIGIT)
    table[:_ASSIGNED] |= letters * np.uint8(LETTER) | (letters | numbers) * np.uint8(WORD)
    table[0x1C:0x21] |= SPACE
    rest = np.flatnonzero(~(letters | numbers | spaces)[:0x20000]).tolist()
    marks = [code for code in [*rest, *range(0xE0100, 0xE01F0)] if unicodedata.category(chr(code))[0] == "M"]
    table[marks] |= WORD | MARK
    table[[code for code in rest if unicodedata.category(chr(code)) == "Pc"]] |= WORD
    for name, bits in {"joiners": WORD | MARK, "alone": ALONE, "katakana": KATAKANA, "symbols": SYMBOL}.items():
        table[code_points(_RANGES[name])] |= bits
    table[code_points(_RANGES["terminals"])] |= SYMBOL
    return table


@compiled
def decode(data, place, end):
    """(code point, bytes) of the character at `place` in UTF-8 text; U+FFFD, 1 where it is cut off or broken."""
    first = np.int64(data[place])
    if first < 0x80:
        return first, 1
    if 0xC2 <= first < 0xE0 and place + 1 < end:
        return (first & 0x1F) << 6 | (np.int64(data[place + 1]) & 0x3F), 2
    if 0xE0 <= first < 0xF0 and place + 2 < end:
        middle = (np.int64(data[place + 1]) & 0x3F) << 6
        return (first & 0x0F) << 12 | middle | (np.int64(data[place + 2]) & 0x3F), 3
    if 0xF0 <= first < 0xF5 and place + 3 < end:
        middle = (np.int64(data[place + 1]) & 0x3F) << 12 | (np.int64(data[place + 2]) & 0x3F) << 6
        return min((first & 0x07) << 18 | middle | (np.int64(data[place + 3]) & 0x3F), 0x10FFFF), 4
    return 0xFFFD, 1


@compiled
def find_newline(data, start, end):
    """The first line feed in data[start:end], else `end`.

    Eight bytes at a time: XOR makes line feeds zero, and subtracting 1 from each byte borrows where one is zero.
    """
    while start + 8 <= end:
        eight = load64(data, start) ^ _NEWLINES
        if (eight - _LOWEST) & ~eight & _HIGHEST:
            break
        start += 8
    while start < end and data[start] != 0x0A:
        start += 1
    return start
