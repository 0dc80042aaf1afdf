"""Tables of text: csv (RFC 4180) and tsv (quoted or not), with a header that names the columns."""

import csv
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import chain
from typing import Any

from hornbook.text.ingest.charsets import UnfitRow, decode_utf8
from hornbook.text.ingest.compressions import DamagedStream, Stream
from hornbook.text.ingest.document import ReadOptions, Rejected, Row, reject, short, to_documents, too_long
from hornbook.text.ingest.fields import missing_column
from hornbook.text.ingest.formats.tables.quoting import SAMPLE_BYTES, quotes_cells
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.labels.rows import columns_of, fields_of, names_fields
from hornbook.text.ingest.lines import Buffered, Line
from hornbook.text.ingest.parts import input_lines

_DIALECTS: dict[str, dict[str, Any]] = {
    "csv": {"strict": True},
    "tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
    "quoted tsv": {"delimiter": "\t", "strict": True},
}


class _CsvLines:
    """Gives lines to the csv module and knows which of them the current row consists of.

    Lines that cannot be given to it raise UnfitRow, without a reason where the row is too long.
    """

    def __init__(self, lines: Iterator[Line], options: ReadOptions) -> None:
        self._lines, self._options = lines, options
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
        if line.overlong or self.size > self._options.max_bytes:
            raise UnfitRow
        return decode_utf8(line.data, self._options.encoding) + "\n" * line.count


def read(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """The documents of each row after the header; a quoted cell may hold line ends."""
    csv.field_size_limit(sys.maxsize)  # rows are bounded here
    dialect = file.format
    if dialect == "tsv" and file.part[1] == 1:
        raw = Buffered(raw)
        sample = raw.peek(SAMPLE_BYTES)
        dialect = "quoted tsv" if quotes_cells(sample, file.compression, options.encoding) else dialect
    own = input_lines(file, raw, options.max_bytes, options.encoding)
    header = [*(options.columns or columns_of(options.labels, file.format))]
    if header and not options.columns and (first := next(own, None)) is not None:
        cells = first.data.decode(errors="replace").rstrip("\r").split("\t")
        header = [] if names_fields(options.labels, cells) else header
        own = chain([first], own)
    if header and file.part[0]:
        next(own, None)  # every part begins with the first line, which is a row of the first part here
    lines = _CsvLines(own, options)
    table = csv.reader(lines, **_DIALECTS[dialect])
    if header and (problem := _unfit_header(header, options)):
        yield from _all_rows(file, lines, table, problem)
        return
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
            if header or not file.part[0]:  # the first part says for all that the header is damaged
                yield _damaged(file, lines, error, options)
            if not header:
                return
            continue
        if header:
            yield from _row(file, lines, header, cells, options)
            continue
        header = cells
        if problem := _unfit_header(header, options):
            yield from _all_rows(file, lines, table, problem)
            return


def _all_rows(file: InputFile, lines: _CsvLines, table: Iterator[list[str]], problem: str) -> Iterator[Rejected]:
    """One row for all rows of a table whose header does not fit, or of a part of it, with their number and bytes."""
    rows = size = 0
    first = lines.first
    with suppress(StopIteration, DamagedStream):
        while True:
            lines.start_row()
            with suppress(csv.Error, UnfitRow):
                next(table)
            rows, size = rows + bool(lines.count), size + lines.size
    if rows or not file.part[0]:
        yield reject(file, 0 if file.part[0] else 1, problem, first.data, size, rows=max(rows, 1))


def _unfit_header(header: list[str], options: ReadOptions) -> str:
    """Why rows under a header cannot be read; empty where they can."""
    wanted = {"text": options.text_field} if options.labels is None else fields_of(options.labels)
    if not (problem := missing_column(header, wanted)) and len(set(header)) < len(header):
        return f"a column is named twice (columns: {', '.join(header)[:100]!a})"
    return problem


def _damaged(file: InputFile, lines: _CsvLines, error: Exception, options: ReadOptions) -> Rejected:
    number, data = lines.first.number, lines.first.data
    if not str(error):
        return too_long(file, number, lines.size, options, data)
    reason = str(error) if isinstance(error, UnfitRow) else f"invalid {file.format}: {short(error)}"
    where = f" (lines {number} to {lines.number})" if lines.number > number else ""
    return reject(file, number, reason + where, data, lines.size)


def _row(file: InputFile, lines: _CsvLines, header: list[str], cells: list[str], options: ReadOptions) -> Iterable[Row]:
    first = lines.first
    if not cells or (len(cells) == 1 and not first.data.strip()):
        return [reject(file, first.number, "blank line", b"", lines.size, rows=first.count, damaged=False)]
    if len(cells) != len(header):
        reason = f"wrong number of cells: {len(cells)}, the header has {len(header)}"
        return [reject(file, first.number, reason, first.data, lines.size)]
    return to_documents(file, first.number, dict(zip(header, cells, strict=True)), options)
