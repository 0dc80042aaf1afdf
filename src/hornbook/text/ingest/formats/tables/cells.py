"""Tables of text: csv (RFC 4180) and tsv (no quoting), with a header that names the columns."""

import csv
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hornbook.text.ingest.charsets import UnfitRow, decode_utf8
from hornbook.text.ingest.compressions import DamagedStream, Stream
from hornbook.text.ingest.document import Make, ReadOptions, Rejected, Row, reject, row_documents, short, too_long
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import Line
from hornbook.text.ingest.parts import input_lines

_DIALECTS: dict[str, dict[str, Any]] = {
    "csv": {"strict": True},
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}


class _CsvLines:
    """Gives lines to the csv module and knows which of them the current row consists of.

    Lines that cannot be given to it raise UnfitRow, without a reason where the row is too long.
    """

    def __init__(self, lines: Iterator[Line], limit: int) -> None:
        self._lines, self._limit = lines, limit
        self.first = Line(0, b"", 0)
        self.number = self.size = self.count = 0

    def start_row(self) -> None:
        """The next line starts a row."""
        self.size = self.count = 0

    def __iter__(self) -> "_CsvLines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.first = self.first if self.count else line
        self.number = line.number + line.count - 1
        self.size, self.count = self.size + line.size + 1, self.count + line.count
        if line.overlong or self.size > self._limit:
            raise UnfitRow
        return decode_utf8(line.data) + "\n" * line.count


def read(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """The document of each row after the header."""
    return read_table(file, raw, options, {"text": options.text_field}, row_documents)


def read_table(
    file: InputFile, raw: Stream, options: ReadOptions, wanted: Mapping[str, str], make: Make
) -> Iterator[Row]:
    """What `make` makes of each row after the header; a quoted cell may hold line ends.

    wanted: what a column holds -> its name; without one of them nothing is read.
    """
    csv.field_size_limit(sys.maxsize)  # rows are bounded here
    lines = _CsvLines(input_lines(file, raw, options.max_bytes), options.max_bytes)
    table = csv.reader(lines, **_DIALECTS[file.format])
    header: list[str] | None = None
    while True:
        lines.start_row()
        try:
            cells = next(table)
        except StopIteration:
            return
        except DamagedStream as error:
            yield reject(file, lines.number + 1, str(error))
            return
        except (csv.Error, UnfitRow) as error:
            if header is None and file.part[0]:  # the first part says so
                return
            yield _damaged(file, lines, error, options)
            if header is None:
                return
            continue
        if header is not None:
            yield from _row(file, lines, header, cells, options, make)
            continue
        header = cells
        problem = missing_column(header, wanted)
        if not problem and len(set(header)) < len(header):
            problem = f"a column is named twice (columns: {', '.join(header)[:100]!a})"
        if problem:
            if not file.part[0]:
                yield reject(file, 1, problem)
            return


def missing_column(columns: list[str], wanted: Mapping[str, str]) -> str:
    """Why a table of these columns cannot be read, as in `read_table`; empty where it can."""
    for what, name in wanted.items():
        if name not in columns:
            return f"missing {what}: no column {name!r} (columns: {', '.join(columns)[:100]!a})"
    return ""


def _damaged(file: InputFile, lines: _CsvLines, error: Exception, options: ReadOptions) -> Rejected:
    number, data = lines.first.number, lines.first.data
    if not str(error):
        return too_long(file, number, lines.size, options, data)
    reason = str(error) if isinstance(error, UnfitRow) else f"invalid {file.format}: {short(error)}"
    where = f" (lines {number} to {lines.number})" if lines.number > number else ""
    return reject(file, number, reason + where, data, lines.size)


def _row(
    file: InputFile, lines: _CsvLines, header: list[str], cells: list[str], options: ReadOptions, make: Make
) -> Iterable[Row]:
    first = lines.first
    if not cells or (len(cells) == 1 and not first.data.strip()):
        return [reject(file, first.number, "blank line", b"", lines.size, rows=first.count, damaged=False)]
    if len(cells) != len(header):
        reason = f"wrong number of cells: {len(cells)}, the header has {len(header)}"
        return [reject(file, first.number, reason, first.data, lines.size)]
    return make(file, first.number, dict(zip(header, cells, strict=True)), options)
