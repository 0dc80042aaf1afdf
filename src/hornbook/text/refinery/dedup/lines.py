"""Repeated lines and paragraphs: all but the first of each in the corpus are cut."""

from collections.abc import Callable, Sequence
from typing import ClassVar

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
def _find_lines(data, bounds, first, least, units):
    data, units, count = borrowed(data), borrowed(units), 0
    for document in range(len(bounds) - 1):
        begin, stop = bounds[document], bounds[document + 1] - 1
        row = np.uint64(first + document) << _ROW
        place = begin
        while place < stop:
            end = find_newline(data, place, stop)
            after = min(end + 1, stop)
            text = _trimmed(data, place, end)
            count = _write(units, count, data, text, row, (place - begin, after - begin), least)
            place = after
    return count


@compiled
def _find_paragraphs(data, bounds, first, least, units):
    data, units, count = borrowed(data), borrowed(units), 0
    for document in range(len(bounds) - 1):
        begin, stop = bounds[document], bounds[document + 1] - 1
        row = np.uint64(first + document) << _ROW
        start = place = text_start = text_end = begin
        ended = True  # by an empty line, or no paragraph has begun
        while place < stop:
            end = find_newline(data, place, stop)
            left, right = _trimmed(data, place, end)
            if left < right:
                if ended:
                    count = _write(
                        units, count, data, (text_start, text_end), row, (start - begin, place - begin), least
                    )
                    start, text_start = place, left
                text_end = right
            ended = left == right
            place = min(end + 1, stop)
        count = _write(units, count, data, (text_start, text_end), row, (start - begin, stop - begin), least)
    return count


class LineDedup(Copies):
    """Cuts lines with their line feeds; whitespace at their ends makes no difference."""

    find: ClassVar[Callable[..., int]] = staticmethod(_find_lines)

    def sketch(self, documents: Sequence[Document], first: int) -> np.ndarray:
        """uint64 [units, 3], as `spans` describes."""
        data, bounds = pack(document.text for document in documents)
        units = np.empty((np.count_nonzero(data == 10), 3), np.uint64)
        return units[: self.find(data, bounds, first, self.config.min_bytes, units)]


class ParagraphDedup(LineDedup):
    """Cuts paragraphs (lines between empty ones) with the empty lines after them."""

    find: ClassVar[Callable[..., int]] = staticmethod(_find_paragraphs)
