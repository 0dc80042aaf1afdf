"""What a word is. Three definitions; which one is taken decides what rules do to technical and to Asian text.

`whitespace`: what stands between blanks (`str.split`), punctuation included: `f(x)` and `don't.` are words.

`unicode`: runs of letters, marks, numbers and `_`; an apostrophe or full stop between two letters and a full stop or
comma between two digits belong to the word (`don't`, `U.S`, `1,000.5`). Other punctuation is in no word. This is
Unicode's default (UAX 29) but for rarer marks and for Asian scripts, whose runs are one word.

`cjk`: as `unicode`, and each ideograph and each Hiragana letter is a word with the marks on it; a run of Katakana is
one, and so is a run of Hangul, for Korean is written with blanks. Thai, Lao, Khmer and Burmese remain runs.
"""

import numpy as np

from hornbook.text.compiled import compiled
from hornbook.text.refinery.characters import ALONE, DIGIT, KATAKANA, LETTER, MARK, SPACE, WORD, decode, kinds

DEFINITIONS = ("whitespace", "unicode", "cjk")
ASCII = np.uint8(0x80)
"""All smaller bytes are characters."""


def word_bounds(data: np.ndarray, definition: str) -> tuple[np.ndarray, np.ndarray]:
    """Words of UTF-8 text (uint8 [bytes]): where each begins and ends, int64 [words] each; in linear time."""
    starts, ends = np.empty((2, most_words(len(data))), np.int64)
    count = find_words(data, 0, len(data), DEFINITIONS.index(definition), kinds(), starts, ends)
    return starts[:count], ends[:count]


def most_words(size: int) -> int:
    """How many words may be in so many bytes: a word of one byte has a blank behind it, all others two bytes."""
    return size // 2 + 1


@compiled
def find_words(data, begin, end, definition, kind, starts, ends):
    """The number of words in data[begin:end]; their bounds go into `starts` and `ends`."""
    if definition == 0:
        return _between_blanks(data, begin, end, kind, starts, ends)
    return _runs(data, begin, end, definition == 2, kind, starts, ends)


@compiled
def _between_blanks(data, begin, end, kind, starts, ends):
    count, inside = 0, False
    place = begin
    while place < end:
        if data[place] < ASCII:  # a branch that is foreseen, so that nothing waits for the width
            code, width = np.int64(data[place]), 1
        else:
            code, width = decode(data, place, end)
        blank = kind[code] & SPACE != 0
        if blank == inside:
            if inside:
                ends[count] = place
                count += 1
            else:
                starts[count] = place
            inside = not inside
        place += width
    if inside:
        ends[count] = end
    return count + inside


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
    """Where the ASCII letters, digits and `_` from `place` on end."""
    while place < end and data[place] < ASCII and kind[data[place]] & WORD:
        place += 1
    return place


@compiled
def _joins(code, last, data, place, end, kind):
    """Whether a mark in a word, behind a character of kind `last`, belongs to it: what stands at `place` tells."""
    apostrophe, comma, stop = code in (0x27, 0x2019), code == 0x2C, code == 0x2E
    if place == end or not (apostrophe or comma or stop):
        return False
    following = np.int64(kind[decode(data, place, end)[0]])
    if (last | following) & ALONE:
        return False
    both = last & following
    return (both & LETTER != 0 and not comma) or (both & DIGIT != 0 and not apostrophe)
