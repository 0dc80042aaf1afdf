"""Lines and paragraphs that stand in the corpus more than once are cut, but for the first of each."""

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
    """A line without controls and spaces (ASCII) at both ends."""
    while start < end and data[start] <= _SPACE:
        start += 1
    while start < end and data[end - 1] <= _SPACE:
        end -= 1
    return start, end


@compiled
def _write(units, count, data, text, row, span, least):
    """Add the unit whose text is data[text[0]:text[1]], to be cut as `span`, if it is long enough; the new count."""
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
        ended = True  # by a blank line, or none has begun
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
    """A line goes with its line feed; blanks at its ends make no difference."""

    find: ClassVar[Callable[..., int]] = staticmethod(_find_lines)

    def sketch(self, documents: Sequence[Document], first: int) -> np.ndarray:
        """uint64 [units, 3], see `spans`."""
        data, bounds = pack(document.text for document in documents)
        units = np.empty((np.count_nonzero(data == 10), 3), np.uint64)
        return units[: self.find(data, bounds, first, self.config.min_bytes, units)]


class ParagraphDedup(LineDedup):
    """Paragraphs are lines between blank ones; one goes with the blank lines that follow it."""

    find: ClassVar[Callable[..., int]] = staticmethod(_find_paragraphs)
