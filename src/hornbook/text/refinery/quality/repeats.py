"""Repeated lines and paragraphs within one document. Equal means equal bytes, not equal hashes.

Hash tables (uint32: index + 1, 0 for free) use open addressing and are at most half full, so all of this is linear.
"""

import numpy as np

from hornbook.kernels.compiled import GOLDEN, compiled
from hornbook.kernels.packed import hash_bytes
from hornbook.text.refinery.quality.line_counts import first_visible, last_begin, visible_end
from hornbook.text.refinery.quality.word_counts import same_bytes, table_bits
from hornbook.text.refinery.words.characters import decode, find_newline

PART_COLUMNS = (
    *("paragraphs", "duplicate_paragraphs", "duplicate_paragraph_characters"),
    *("text_lines", "duplicate_lines", "duplicate_line_characters", "visible_lines", "terminal_lines", "short_lines"),
    *("duplicate_visible_characters", "third_longest_line"),
)
"""Paragraphs stand between empty lines, text lines between runs of newlines (with an empty one at an end that is a
newline), visible lines are those with a character to see. Lengths are in characters."""
_PARAGRAPHS, _LINES, _VISIBLE, _TERMINAL, _SHORT, _VISIBLE_CHARACTERS, _THIRD = 0, 3, 6, 7, 8, 9, 10


@compiled
def first_equal(data, starts, ends, i, table, bits):
    """Index of the first of the parts 0..i with the bytes of part i; called for each i in turn."""
    start, size = starts[i], ends[i] - starts[i]
    place = np.int64((hash_bytes(data, start, ends[i]) * GOLDEN) >> np.uint64(64 - bits))
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
    row[_VISIBLE_CHARACTERS] = _count_repeats(data, count, kind, starts, ends, row[_LINES : _LINES + 3])
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
        if place - run >= least:
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
