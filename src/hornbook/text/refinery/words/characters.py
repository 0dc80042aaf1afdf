"""Kinds of characters as a table of bits by code point, and UTF-8 decoding, for kernels."""

import unicodedata
from functools import cache

import numpy as np

from hornbook.kernels.compiled import compiled, load64

SPACE, WORD, DIGIT, LETTER, ALONE, KATAKANA, SYMBOL, MARK = (1 << bit for bit in range(8))
"""Whitespace as `str.isspace`; part of a word (letters, marks, numbers, `_`, joiners); decimal digit; letter as
`str.isalpha`; ideograph or Hiragana letter; Katakana; punctuation or control; combining mark."""

CODE_POINTS = 0x110000
_NEWLINES, _LOWEST, _HIGHEST = (np.uint64(byte * 0x0101010101010101) for byte in (0x0A, 0x01, 0x80))
_ASSIGNED = 0x40000
"""From here on Unicode has only selectors, tags and private characters: no letters, digits or whitespace."""
_ALONE = "3005-3007 3041-3096 309d-309f 3400-4dbf 4e00-9fff f900-faff 1b001-1b11f 20000-3fffd"
_KATAKANA = "30a1-30fa 30fc-30ff 31f0-31ff ff66-ff9f"
_JOINERS = "200c-200d"
_SYMBOLS = (
    "0000-0008 000b-001f 0021-002f 003a-0040 005b-0060 007b-009f 00ab 00b4 00bb 2013-2014 2019 201c-201e 2026 2236 "
    "2501 25ba 3001-3002 3008-300d 3010-3011 ff01 ff05 ff08-ff09 ff0c ff0e ff11 ff1a-ff1b ff1f ff5e"
)
_TERMINALS = (
    "0021 002e 003f 0589 061d-061f 06d4 0700-0702 07f9 0837 0839 083d-083e 0964-0965 104a-104b 1362 1367-1368 166e "
    "1735-1736 17d4-17d6 17d9-17da 1803 1809 1944-1945 1aa8-1aab 1b5a-1b5b 1b5e-1b5f 1b7d-1b7e 1c3b-1c3c 1c7e-1c7f "
    "203c-203d 2047-2049 2e2e 2e3c 2e53-2e54 3002 a4ff a60e-a60f a6f3 a6f7 a876-a877 a8ce-a8cf a92f a9c8-a9c9 "
    "aa5d-aa5f aaf0-aaf1 abeb fe52 fe56-fe57 ff01 ff0e ff1f ff61 10a56-10a57 10f55-10f59 10f86-10f89 11047-11048 "
    "110be-110c1 11141-11143 111c5-111c6 111cd 111de-111df 11238-11239 1123b-1123c 112a9 1144b-1144c 115c2-115c3 "
    "115c9-115d7 11641-11642 1173c-1173e 11944 11946 11a42-11a43 11a9b-11a9c 11c41-11c42 11ef7-11ef8 11f43-11f44 "
    "16a6e-16a6f 16af5 16b37-16b38 16b44 16e98 1bc9f 1da88"
)


def code_points(ranges: str) -> np.ndarray:
    """Code points of ranges in hexadecimal, such as `0021 061d-061f`."""
    pairs = [part.partition("-") for part in ranges.split()]
    return np.concatenate([np.arange(int(first, 16), int(last or first, 16) + 1) for first, _, last in pairs])


def sentence_terminals() -> str:
    """Characters that end sentences in any script: Unicode's Sentence_Terminal of 2021 and Khmer's colon and marks."""
    return "".join(map(chr, code_points(_TERMINALS)))


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
    for ranges, bits in ((_JOINERS, WORD | MARK), (_ALONE, ALONE), (_KATAKANA, KATAKANA), (_SYMBOLS, SYMBOL)):
        table[code_points(ranges)] |= bits
    table[code_points(_TERMINALS)] |= SYMBOL
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
