"""Counts of the characters, lines and paragraphs of one document, and of those that are repeated in it, for the rules.

A sentence has a word and lasts until a terminal mark that ends it, or to the end of its line. `.`, `!` and `?` end it
if whitespace follows, possibly after other marks; terminal marks beyond ASCII always do.

Parts are repeated where their bytes are equal, not their hashes. Hash tables (uint32: index + 1, 0 for free) use open
addressing and are at most half full, so all of this is linear.
"""

import numpy as np

from hornbook.kernels.compiled import GOLDEN, compiled
from hornbook.kernels.packed import hash_bytes
from hornbook.text.refinery.quality.word_counts import same_bytes, table_bits
from hornbook.text.refinery.words.characters import SPACE, WORD, decode, find_newline

COLUMNS = (
    *("characters", "line_characters", "newlines", "hashes", "ellipses", "lines", "bullet_lines", "ellipsis_lines"),
    *("sentences", "lorem_ipsum_line", "curly_bracket_line"),
)
"""`newlines` are U+000A, `line_characters` all others, `lines` those of `str.splitlines`; the last two are the index of
the first such line, -1 for none."""
PART_COLUMNS = (
    *("paragraphs", "duplicate_paragraphs", "duplicate_paragraph_characters"),
    *("text_lines", "duplicate_lines", "duplicate_line_characters", "visible_lines", "terminal_lines", "short_lines"),
    *("duplicate_visible_characters", "third_longest_line"),
)
"""Paragraphs stand between empty lines, text lines between runs of newlines (with an empty one at an end that is a
newline), visible lines are those with a character to see. Lengths are in characters."""
_CHARACTERS, _LINE_CHARACTERS, _NEWLINES, _HASHES, _ELLIPSES, _LINES, _BULLETS, _TRAILING = range(8)
_SENTENCES, _LOREM, _CURLY = range(8, 11)
_PARAGRAPHS, _TEXT_LINES, _VISIBLE, _TERMINAL, _SHORT, _VISIBLE_CHARACTERS, _THIRD = 0, 3, 6, 7, 8, 9, 10
_ASCII = np.uint8(0x80)
_LOREM_IPSUM = np.frombuffer(b"lorem ipsum", np.uint8)


@compiled
def count_lines(data, begin, end, kind, terminal, row):
    """Fill `row` [columns] for the text data[begin:end].

    One loop, because most characters are parts of words and need no work. Of a line it keeps the first visible
    character and the end of the last; of a sentence, whether it has a word (`inside`) and an end (`marked`).
    """
    row[_LOREM] = row[_CURLY] = -1
    place, line, first, tail, dots, inside, marked = begin, begin, -1, begin, 0, False, False
    characters, newlines, sentences, lines = 0, 0, 0, 0
    while place < end:
        if data[place] < _ASCII:
            code, width = np.int64(data[place]), 1
        else:
            code, width = decode(data, place, end)
        bits = kind[code]
        characters += 1
        if not bits & SPACE:
            first = code if tail == line else first  # `tail` leaves `line` at the first visible character
            if bits & WORD:
                inside, marked, dots = True, False, 0
                if code | 0x20 == 0x6C and row[_LOREM] < 0 and _is_lorem_ipsum(data, place, end):
                    row[_LOREM] = lines
            else:
                dots = _count_mark(code, dots, lines, row)
                if inside and terminal[code]:
                    sentences += code >= 0x80
                    inside = marked = code < 0x80
            tail = place + width
        else:
            newlines += code == 0x0A
            sentences += marked
            inside, marked, dots = inside and not marked, False, 0
            if _ends_line(code, data, place + 1, end):
                sentences += inside
                _count_line(data, line, tail, first, row)
                lines, line, first, inside = lines + 1, place + width, -1, False
                tail = line
        place += width
    if line < end:
        _count_line(data, line, tail, first, row)
    row[_CHARACTERS], row[_LINE_CHARACTERS] = characters, characters - newlines
    row[_NEWLINES], row[_SENTENCES], row[_LINES] = newlines, sentences + inside, lines + (line < end)


@compiled
def _count_mark(code, dots, lines, row):
    """Count a character outside words; returns the number of dots before the next one, modulo 3."""
    if code == 0x2E:
        row[_ELLIPSES] += dots == 2
        return (dots + 1) % 3
    if code == 0x2026:
        row[_ELLIPSES] += 1
    elif code == 0x23:
        row[_HASHES] += 1
    elif code == 0x7B and row[_CURLY] < 0:
        row[_CURLY] = lines
    return 0


@compiled
def _ends_line(code, data, following, end):
    """Whether the character ends a line as in `str.splitlines`; of CR LF the second does."""
    if code == 0x0D:
        return following == end or data[following] != 0x0A
    return 0x0A <= code <= 0x0C or 0x1C <= code <= 0x1E or code in (0x85, 0x2028, 0x2029)


@compiled
def _count_line(data, line, tail, first, row):
    """Count a line that begins with `-` or U+2022, or ends in three dots or U+2026, without outer whitespace."""
    row[_BULLETS] += first in (0x2D, 0x2022)
    if tail - line >= 3:
        one, two, three = data[tail - 3], data[tail - 2], data[tail - 1]
        dots = one == 0x2E and two == 0x2E and three == 0x2E
        row[_TRAILING] += dots or (one == 0xE2 and two == 0x80 and three == 0xA6)


@compiled
def _is_lorem_ipsum(data, place, end):
    """In any case of its letters."""
    if place + len(_LOREM_IPSUM) > end:
        return False
    for i in range(1, len(_LOREM_IPSUM)):
        byte = data[place + i]
        if (byte | 0x20 if _LOREM_IPSUM[i] != 0x20 else byte) != _LOREM_IPSUM[i]:
            return False
    return True


@compiled
def first_visible(data, begin, end, kind):
    """Start of the first character that is not whitespace; `end` if there is none."""
    while begin < end:
        code, width = decode(data, begin, end)
        if not kind[code] & SPACE:
            return begin
        begin += width
    return end


@compiled
def last_begin(data, begin, end):
    """Start of the last character before `end`."""
    end -= 1
    while end > begin and data[end] & 0xC0 == 0x80:
        end -= 1
    return end


@compiled
def visible_end(data, begin, end, kind):
    """End of the last character that is not whitespace; `begin` if there is none."""
    while end > begin:
        last = last_begin(data, begin, end)
        if not kind[decode(data, last, end)[0]] & SPACE:
            return end
        end = last
    return begin


@compiled
def first_equal(data, starts, ends, i, table, bits):
    """Index of the first of the parts 0..i with the bytes of part i; called for each i in turn."""
    start, size = starts[i], ends[i] - starts[i]
    place = np.int64((hash_bytes(data, start, ends[i]) * GOLDEN) >> np.uint64(64 - bits))
    # The table is never full, so the search ends: at an equal part, or at the slot where this one belongs.
    while table[place]:
        other = np.int64(table[place]) - 1
        if ends[other] - starts[other] == size and same_bytes(data, starts[other], start, size):
            return other
        place = (place + 1) & (len(table) - 1)
    table[place] = i + 1
    return i


@compiled
def count_parts(data, begin, end, kind, terminal, short, starts, ends, row):
    """Fill `row` [PART_COLUMNS] for the text data[begin:end]; `starts` and `ends` are room for the parts."""
    first, last = first_visible(data, begin, end, kind), visible_end(data, begin, end, kind)
    count = _split(data, min(first, last), last, 2, starts, ends)
    _count_repeats(data, count, kind, starts, ends, row[_PARAGRAPHS : _PARAGRAPHS + 3])
    count = _split(data, begin, end, 1, starts, ends)
    row[_VISIBLE_CHARACTERS] = _count_repeats(data, count, kind, starts, ends, row[_TEXT_LINES : _TEXT_LINES + 3])
    lengths = np.zeros(3, np.int64)
    for i in range(count):
        length = characters(data, starts[i], ends[i])
        _keep_longest(lengths, length)
        if first_visible(data, starts[i], ends[i], kind) < ends[i]:
            row[_VISIBLE] += 1
            row[_SHORT] += length <= short
            row[_TERMINAL] += ends_in(data, starts[i], ends[i], terminal)
    row[_THIRD] = lengths[2]


@compiled
def _split(data, begin, end, least, starts, ends):
    """Parts between runs of at least `least` newlines; the first and the last may be empty."""
    count, place = 0, find_newline(data, begin, end)
    starts[0] = begin
    while place < end:
        run = place
        while place < end and data[place] == 0x0A:
            place += 1
        if place - run >= least:  # starts[count] is already that of the part that ends here
            ends[count] = run
            count += 1
            starts[count] = place
        place = find_newline(data, place, end)
    ends[count] = end
    return count + 1


@compiled
def _count_repeats(data, count, kind, starts, ends, row):
    """Write the number of parts, of repeated parts, and their characters; returns those of visible repeated parts."""
    bits = table_bits(count)
    table = np.zeros(1 << bits, np.uint32)
    visible = 0
    row[0] = count
    for i in range(count):
        if first_equal(data, starts, ends, i, table, bits) != i:
            length = characters(data, starts[i], ends[i])
            row[1] += 1
            row[2] += length
            if first_visible(data, starts[i], ends[i], kind) < ends[i]:
                visible += length
    return visible


@compiled
def characters(data, begin, end):
    """Number of characters in a span of UTF-8."""
    count = 0
    for place in range(begin, end):
        count += (data[place] & 0xC0) != 0x80
    return count


@compiled
def ends_in(data, begin, end, terminal):
    """Whether the last character is a terminal mark."""
    from_end = last_begin(data, begin, end)
    return terminal[decode(data, from_end, end)[0]] != 0


@compiled
def _keep_longest(lengths, length):
    for i in range(len(lengths)):
        if length > lengths[i]:
            lengths[i], length = length, lengths[i]
