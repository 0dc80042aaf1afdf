"""Three definitions of a word; the choice decides how rules treat technical and Asian text.

`whitespace`: runs without whitespace (`str.split`), punctuation included: `f(x)` and `don't.` are words.

`unicode`: runs of letters, marks, numbers and `_`; an apostrophe or full stop between two letters and a full stop or
comma between two digits belong to the word (`don't`, `U.S`, `1,000.5`). Other punctuation is in no word. This is
Unicode's default (UAX 29) but for rarer marks and for Asian scripts, whose runs are one word.

`cjk`: as `unicode`, and each ideograph and each Hiragana letter is a word with the marks on it; a run of Katakana is
one, and so is a run of Hangul, because Korean is written with spaces. Thai, Lao, Khmer and Burmese remain runs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hornbook.kernels.compiled import compiled, load64, zeros_below
from hornbook.kernels.packed import hash_words, pack
from hornbook.text.refinery.words.characters import ALONE, DIGIT, KATAKANA, LETTER, MARK, SPACE, WORD, decode, kinds

DEFINITIONS = ("whitespace", "unicode", "cjk")
ASCII = np.uint8(0x80)
"""All smaller bytes are characters."""
_ONE, _SEVEN, _BYTE, _HIGHEST = np.uint64(1), np.uint64(7), np.uint64(8), np.uint64(0x8080808080808080)
_FROM_9, _FROM_14, _FROM_28, _FROM_33 = (np.uint64((0x80 - byte) * 0x0101010101010101) for byte in (9, 14, 28, 33))
"""Added to ASCII, they set the highest bit of bytes from 9, 14, 28, 33 on."""


def word_bounds(data: np.ndarray, definition: str) -> tuple[np.ndarray, np.ndarray]:
    """(starts, ends), int64 [words] each, of the words of UTF-8 text (uint8 [bytes]); in linear time."""
    starts, ends = np.empty((2, most_words(len(data))), np.int64)
    count = find_words(data, 0, len(data), DEFINITIONS.index(definition), kinds(), starts, ends)
    return starts[:count], ends[:count]


def most_words(size: int) -> int:
    """Upper bound on the number of words in `size` bytes, plus one slot for a discarded start (`_between_whitespace`).

    Every word has at least two bytes, or one byte and whitespace after it.
    """
    return size // 2 + 2


@compiled
def find_words(data, begin, end, definition, kind, starts, ends):
    """The number of words in data[begin:end]; their bounds go into `starts` and `ends`."""
    if definition == 0:
        return _between_whitespace(data, begin, end, kind, starts, ends)
    return _runs(data, begin, end, definition == 2, kind, starts, ends)


@compiled
def _between_whitespace(data, begin, end, kind, starts, ends):
    """Boundaries between words and whitespace, eight bytes of ASCII at a time.

    Each boundary is written as a start and as an end, and the wrong one is overwritten: a branch would be mispredicted.
    """
    count, inside = 0, 0
    place = begin
    while place < end:
        eight = load64(data, place) if place + 8 <= end else _HIGHEST  # fewer are read one by one
        if eight & _HIGHEST:
            for _ in range(8):
                if place == end:
                    break
                code, width = decode(data, place, end)
                if (kind[code] & SPACE != 0) == inside:
                    starts[count + inside] = ends[count] = place
                    count, inside = count + inside, 1 - inside
                place += width
        else:
            words = ~_whitespace(eight) & _HIGHEST
            turns = words ^ (words << _BYTE | np.uint64(inside) << _SEVEN)
            while turns:
                starts[count + inside] = ends[count] = place + (zeros_below(turns) >> 3)
                count, inside = count + inside, 1 - inside
                turns &= turns - _ONE
            place += 8
    if inside:
        ends[count] = end
    return count + inside


@compiled
def _whitespace(eight):
    """The highest bit of each of eight ASCII bytes that is whitespace: 9 to 13, 28 to 32 (`str.isspace`)."""
    from_9, from_14, from_28, from_33 = eight + _FROM_9, eight + _FROM_14, eight + _FROM_28, eight + _FROM_33
    return (from_9 & ~from_14) | (from_28 & ~from_33)


@compiled
def _runs(data, begin, end, cjk, kind, starts, ends):
    count, inside, last = 0, False, 0
    place = begin
    while place < end:
        if data[place] < ASCII:
            code, width = np.int64(data[place]), 1
        else:
            code, width = decode(data, place, end)
        bits = np.int64(kind[code])
        if not bits & WORD:
            if inside and not _joins(code, last, data, place + width, end, kind):
                ends[count] = place
                count += 1
                inside = False
        elif not inside:
            starts[count] = place
            inside, last = True, bits
        elif not bits & MARK:
            if cjk and ((bits | last) & ALONE or (bits ^ last) & KATAKANA):
                ends[count] = place
                count += 1
                starts[count] = place
            last = bits
        place += width
        if inside and not last & (ALONE | KATAKANA):
            after = _after_ascii(data, place, end, kind)
            if after > place:
                place, last = after, np.int64(kind[data[after - 1]])
    if inside:
        ends[count] = end
    return count + inside


@compiled
def _after_ascii(data, place, end, kind):
    """End of the run of ASCII letters, digits and `_` that starts at `place`."""
    while place < end and data[place] < ASCII and kind[data[place]] & WORD:
        place += 1
    return place


@compiled
def _joins(code, last, data, place, end, kind):
    """Whether punctuation after a character of kind `last` belongs to the word: the character at `place` decides."""
    apostrophe, comma, stop = code in (0x27, 0x2019), code == 0x2C, code == 0x2E
    if place == end or not (apostrophe or comma or stop):
        return False
    following = np.int64(kind[decode(data, place, end)[0]])
    if (last | following) & ALONE:
        return False
    both = last & following
    return (both & LETTER != 0 and not comma) or (both & DIGIT != 0 and not apostrophe)


_MARK = np.array([32 < byte < 127 and not chr(byte).isalnum() for byte in range(256)])
"""ASCII punctuation."""


@dataclass(frozen=True, slots=True, eq=False)
class HashedWords:
    """All words of all texts, in order."""

    hashes: np.ndarray
    """uint64 [words]."""
    starts: np.ndarray
    """int64 [words]: start of each word in the packed texts."""
    ends: np.ndarray
    """int64 [words]: end of each word."""
    firsts: np.ndarray
    """int64 [texts + 1]: the first word of each text."""
    bounds: np.ndarray
    """int64 [texts + 1]: start of each text in the packed texts."""


def hashed_words(texts: Iterable[str], definition: str, *, plain: bool = False) -> HashedWords:
    """Find the words and hash them; `plain` ignores case, outer punctuation and words of punctuation alone."""
    data, bounds = pack(text.lower() for text in texts) if plain else pack(texts)
    starts, ends = word_bounds(data[: bounds[-1]], definition)
    if plain:
        starts, ends = _without_marks(data, starts, ends, _MARK)
    return HashedWords(hash_words(data, starts, ends), starts, ends, np.searchsorted(starts, bounds), bounds)


@compiled
def _without_marks(data, starts, ends, is_mark):
    kept_starts, kept_ends = np.empty_like(starts), np.empty_like(ends)
    count = 0
    for i in range(len(starts)):
        start, end = starts[i], ends[i]
        while start < end and is_mark[data[start]]:
            start += 1
        while start < end and is_mark[data[end - 1]]:
            end -= 1
        if start < end:
            kept_starts[count], kept_ends[count] = start, end
            count += 1
    return kept_starts[:count], kept_ends[:count]
