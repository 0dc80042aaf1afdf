"""Repeated lines and paragraphs: all but the first of each in the corpus are cut."""

from collections.abc import Sequence

import numpy as np

from hornbook.kernels.compiled import borrowed, compiled
from hornbook.kernels.packed import hash_bytes, pack
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.dedup.spans import Copies
from hornbook.text.refinery.words.characters import find_newline

_SPACE = np.uint8(32)
_ROW = np.uint64(32)


@compiled
def _trimmed(data, start, end):
    """(start, end) of a line without ASCII controls and spaces at both ends."""
    while start < end and data[start] <= _SPACE:
        start += 1
    while start < end and data[end - 1] <= _SPACE:
        end -= 1
    return start, end


@compiled
def _write(units, count, data, text, row, span, least):
    """Add a unit with the text data[text[0]:text[1]], cut as `span`, if it is long enough; returns the new count."""
    if text[1] - text[0] < least:
        return count
    units[count, 0] = hash_bytes(data, text[0], text[1])
    units[count, 1] = row | np.uint64(span[0])
    units[count, 2] = np.uint64(span[1] - span[0])
    return count + 1


@compiled
def _find_units(data, bounds, first, least, by_line, units):
    """Write the lines or paragraphs of packed documents; returns their number. The span of a unit ends where the next
    begins, so a paragraph's has the empty lines after it.
    """
    data, units, count = borrowed(data), borrowed(units), 0
    for document in range(len(bounds) - 1):
        begin, stop = bounds[document], bounds[document + 1] - 1
        row = np.uint64(first + document) << _ROW
        start = place = text_start = text_end = begin
        ended = True  # by an empty line, or no paragraph has begun
        while place < stop:
            end = find_newline(data, place, stop)
            left, right = _trimmed(data, place, end)
            if by_line or (ended and left < right):
                text, span = (text_start, text_end), (start - begin, place - begin)
                count = _write(units, count, data, text, row, span, least)
                start, text_start, text_end = place, left, right
            elif left < right:
                text_end = right
            ended = left == right
            place = min(end + 1, stop)
        count = _write(units, count, data, (text_start, text_end), row, (start - begin, stop - begin), least)
    return count


class LineDedup(Copies):
    """Cuts lines with their line feeds, or paragraphs (lines between empty ones) with the empty lines after them.

    Whitespace at the ends of a unit makes no difference.
    """

    def sketch(self, documents: Sequence[Document], first: int) -> np.ndarray:
        """uint64 [units, 3], as `spans` describes."""
        data, bounds = pack(document.text for document in documents)
        units = np.empty((np.count_nonzero(data == 10), 3), np.uint64)
        by_line = self.config.kind == "line_dedup"
        return units[: _find_units(data, bounds, first, self.config.min_bytes, by_line, units)]
