"""Cut a large file into parts that several tasks read at once: at line ends, or between row groups.

Of a file of lines, part i of n has the lines that start in the i-th of n byte ranges of one size; where these are is
known without reading. Lines are numbered from the beginning of the file, so the line feeds before a part are counted:
each range once, but by tasks that start at the same time, which count what the others have not written down yet.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pyarrow.parquet as pq

from hornbook.files.artifact import digest_of, read_json
from hornbook.files.durable import write_atomic
from hornbook.text.ingest.charsets import plain_text, starts_wide
from hornbook.text.ingest.compressions import Stream
from hornbook.text.ingest.document import DAMAGE
from hornbook.text.ingest.formats.tables.quoting import SAMPLE_BYTES, quotes_cells
from hornbook.text.ingest.inputs import InputFile, is_url
from hornbook.text.ingest.lines import CHUNK, Line, has_returns_alone, open_input, read_lines, with_line_feeds

LINES = ("jsonl", "tsv")
"""Formats in which every line is a row. Cells of csv may hold line ends, so its rows are known only from the start."""
_LEAST = 16
"""Least bytes of a part, more than a byte order mark has."""


def cut(file: InputFile, size: int, encoding: str = "") -> list[InputFile]:
    """The file, or its parts of at most about `size` bytes each. Compressed files and those of URLs are not cut."""
    count = _count_parts(file, -(-file.size // max(size, _LEAST)), encoding)
    return [replace(file, part=(number, count)) for number in range(count)]


def _count_parts(file: InputFile, wanted: int, encoding: str) -> int:
    if wanted < 2 or file.problem or file.compression or is_url(file.path):
        return 1
    try:
        if file.format == "parquet":
            return max(1, min(wanted, pq.read_metadata(file.path).num_row_groups))
        if file.format not in LINES:
            return 1
        with open_input(file) as raw:
            beginning = raw.read(SAMPLE_BYTES)
        quoted = file.format == "tsv" and quotes_cells(beginning, None)  # then a row may have many lines
        whole = quoted or starts_wide(beginning, encoding) or has_returns_alone(beginning)
        return 1 if whole else wanted
    except DAMAGE:  # its reader says so
        return 1


def numbered(file: InputFile, work: Path) -> InputFile:
    """The part with the number of its first line; counts are kept in `work` for the other parts."""
    if not file.part[0] or file.format not in LINES:
        return file
    try:
        return replace(file, line=2 + _lines_before(file, work))
    except OSError as error:
        return replace(file, problem=f"cannot read: {error.strerror or error}")


def _lines_before(file: InputFile, work: Path) -> int:
    """Line feeds before the part, except one right before it: reading the part starts with the search for that one."""
    number, count = file.part
    name = digest_of([file.path, file.stamp, count])
    counts = [work / f"lines-{name}-{part}.json" for part in range(number + 1)]
    known, lines = 0, 0
    # the last part before this one whose number of lines another task has written down
    for part in range(number, 0, -1):
        if isinstance(stored := read_json(counts[part]), int):
            known, lines = part, stored
            break
    with open_input(file) as raw:
        raw.seek(_search_start(file, known))
        for part in range(known, number):
            lines += _line_feeds(raw, _search_start(file, part + 1) - _search_start(file, part))
            write_atomic(counts[part + 1], str(lines), sync=False)
    return lines


def _search_start(file: InputFile, part: int) -> int:
    """Where the search for the first line of a part starts: at the byte before its range.

    Behind the last part there is no limit: it goes on to the end of the file, wherever that is by now.
    """
    count = file.part[1]
    return max(0, file.size * part // count - 1) if part < count else sys.maxsize


def _line_feeds(stream: Stream, size: int) -> int:
    count = 0
    while size and (data := stream.read(min(size, CHUNK))):
        count += data.count(b"\n")
        size -= len(data)
    return count


def input_lines(file: InputFile, raw: Stream, limit: int, encoding: str = "") -> Iterator[Line]:
    """The lines of a file, or of its part, after the header where there is one. `raw`: the file from its beginning."""
    number, count = file.part
    if count == 1:
        return read_lines(with_line_feeds(plain_text(raw, file.compression, encoding)), limit)
    return _later_lines(file, limit) if number else read_lines(_WholeLines(raw, _search_start(file, 1) + 1), limit)


def _later_lines(file: InputFile, limit: int) -> Iterator[Line]:
    """Of a part that is not the first."""
    start, end = (_search_start(file, part) for part in (file.part[0], file.part[0] + 1))
    with open_input(file) as raw:
        if file.format == "tsv":  # its first line is a header
            yield from islice(read_lines(raw, limit), 1)
        raw.seek(start)
        if skipped := _skip_line(raw, end - start):
            start += skipped
            raw.seek(start)
            yield from read_lines(_WholeLines(raw, end + 1 - start), limit, file.line)


def _skip_line(raw: Stream, size: int) -> int:
    """Bytes to the first line feed and with it; 0 where there is none in the next `size` bytes."""
    skipped = 0
    while data := raw.read(min(CHUNK, size - skipped)):
        if end := data.find(b"\n") + 1:
            return skipped + end
        skipped += len(data)
    return 0


class _WholeLines:
    """A stream up to the end of the line that its byte `size` belongs to (counted from 1)."""

    def __init__(self, stream: Stream, size: int) -> None:
        self._stream, self._left, self._ended = stream, size, False

    def read(self, size: int, /) -> bytes:
        if self._ended:
            return b""
        data = self._stream.read(min(size, self._left) if self._left else size)
        if self._left:
            self._left -= len(data)
            self._ended = not self._left and data.endswith(b"\n")
        elif end := data.find(b"\n") + 1:
            data, self._ended = data[:end], True
        return data
