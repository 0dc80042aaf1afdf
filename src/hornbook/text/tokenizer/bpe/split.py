"""Cut text into pre-tokens as the split regexes of GPT-2 and GPT-4 do, in linear time and without a regex engine.

Every character is a letter, a number, whitespace or something else, and with one character of lookahead that decides
which alternative matches. `tables.STYLES` says which regexes are known.
"""

import tomllib
from functools import cache
from pathlib import Path

import numpy as np

from hornbook.kernels.compiled import inlined

OTHER, LETTER, NUMBER, WHITESPACE, NEWLINE = 0, 1, 2, 3, 4
"""Kinds of characters: \\p{L}, \\p{N}, \\s without and with CR and LF; from WHITESPACE on all are \\s."""
PAGE = 256
_BLANK, _QUOTE = 0x20, 0x27


@cache
def character_tables() -> tuple[np.ndarray, np.ndarray]:
    """(int64 [0x1100], uint8 [pages * 256]): code point c has the kind kinds[pages[c // 256] + c % 256].

    Equal pages are kept once, the first one first, so that kinds[c] alone is right for ASCII.
    """
    kinds = np.zeros(0x110000, np.uint8)
    runs = tomllib.loads(Path(__file__).with_name("unicode.toml").read_text(encoding="utf-8"))
    for kind, name in ((LETTER, "letters"), (NUMBER, "numbers"), (WHITESPACE, "whitespace")):
        end = 0
        for run in runs[name].split():
            gap, _, length = run.partition(".")
            start = end + int(gap, 16)
            end = start + int(length or "1", 16)
            kinds[start:end] = kind
    kinds[[0x0A, 0x0D]] = NEWLINE
    offsets: dict[bytes, int] = {}
    pages = [offsets.setdefault(page.tobytes(), PAGE * len(offsets)) for page in kinds.reshape(-1, PAGE)]
    return np.array(pages, np.int64), np.frombuffer(b"".join(offsets), np.uint8)


@inlined
def kind_at(data, offset, pages, kinds):
    """Of the character that begins at data[offset]: its kind plus eight times its bytes."""
    first = np.int64(data[offset])
    if first < 0x80:
        return np.int64(kinds[first]) + 8
    code = np.int64(data[offset + 1]) & 0x3F
    if first < 0xE0:
        code |= (first & 0x1F) << 6
        width = 2
    else:
        code = code << 6 | (np.int64(data[offset + 2]) & 0x3F)
        width = 3
        if first < 0xF0:
            code |= (first & 0x0F) << 12
        else:
            code = (first & 0x07) << 18 | code << 6 | (np.int64(data[offset + 3]) & 0x3F)
            width = 4
    return np.int64(kinds[pages[code >> 8] + (code & 0xFF)]) + 8 * width


@inlined
def _skip(data, offset, end, kind, pages, kinds):
    """The end of a run of characters of one kind."""
    while offset < end:
        character = kind_at(data, offset, pages, kinds)
        if character & 7 != kind:
            break
        offset += character >> 3
    return offset


@inlined
def _skip_some(data, offset, end, most, pages, kinds):
    """The end of a run of at most `most` numbers."""
    for _ in range(most):
        character = kind_at(data, offset, pages, kinds) if offset < end else OTHER
        if character & 7 != NUMBER:
            break
        offset += character >> 3
    return offset


@inlined
def _contraction_end(data, start, end, folds):
    """The end of 's, 't, 're, 've, 'm, 'll or 'd, with `folds` in any case; `start` where there is none."""
    if start + 1 >= end:
        return start
    first, fold = data[start + 1], 0x20 if folds else 0
    if folds and first == 0xC5 and data[start + 2] == 0xBF:  # a long s, which folds to s
        return start + 3
    first |= fold
    if first in (0x73, 0x64, 0x6D, 0x74):
        return start + 2
    if start + 2 < end:
        second = data[start + 2] | fold
        if (first == 0x6C and second == 0x6C) or (first in (0x76, 0x72) and second == 0x65):
            return start + 3
    return start


@inlined
def _blanks_end(data, start, end, lines, pages, kinds):
    r"""The end of what `\s*[\r\n]` (only with `lines`), else `\s+(?!\S)`, else `\s+` matches from `start`."""
    offset, last, after_line = start, start, start
    while offset < end:
        character = kind_at(data, offset, pages, kinds)
        if character & 7 < WHITESPACE:
            break
        last = offset
        offset += character >> 3
        if character & 7 == NEWLINE:
            after_line = offset
    if lines and after_line > start:
        return after_line
    return offset if offset == end or last == start else last


@inlined
def _end_like_gpt4(data, start, end, digits, pages, kinds):
    character = kind_at(data, start, pages, kinds)
    kind, offset = character & 7, start + (character >> 3)
    if kind == LETTER:
        return _skip(data, offset, end, LETTER, pages, kinds)
    if kind == NUMBER:
        return _skip_some(data, offset, end, digits - 1, pages, kinds)
    if data[start] == _QUOTE:
        short = _contraction_end(data, start, end, True)
        if short > start:
            return short
    following = kind_at(data, offset, pages, kinds) & 7 if offset < end else -1
    if following == LETTER and kind != NEWLINE:
        return _skip(data, offset, end, LETTER, pages, kinds)
    if kind == OTHER or (following == OTHER and data[start] == _BLANK):
        offset = _skip(data, offset, end, OTHER, pages, kinds)
        return _skip(data, offset, end, NEWLINE, pages, kinds)
    return _blanks_end(data, start, end, True, pages, kinds)


@inlined
def _end_like_gpt2(data, start, end, pages, kinds):
    if data[start] == _QUOTE:
        short = _contraction_end(data, start, end, False)
        if short > start:
            return short
    offset = start + 1 if data[start] == _BLANK and start + 1 < end else start
    kind = kind_at(data, offset, pages, kinds) & 7
    if kind < WHITESPACE:
        return _skip(data, offset, end, kind, pages, kinds)
    return _blanks_end(data, start, end, False, pages, kinds)


@inlined
def word_end(data, start, end, digits, pages, kinds):
    """Where the pre-token that begins at data[start] ends; `end` is the end of the text, `digits` the style's.

    data: uint8, UTF-8. A text is nothing but pre-tokens, one after the other.
    """
    if digits:
        return _end_like_gpt4(data, start, end, digits, pages, kinds)
    return _end_like_gpt2(data, start, end, pages, kinds)
