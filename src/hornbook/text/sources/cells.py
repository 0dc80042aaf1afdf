"""Tables of text: csv (RFC 4180) and tsv (no quoting), with a header that names the columns."""

import csv
import sys
from collections.abc import Iterator

from hornbook.text.compressions import DamagedStream
from hornbook.text.document import Rejected, excerpt
from hornbook.text.inputs import InputFile
from hornbook.text.lines import HashingFile, Line, why_not_utf8
from hornbook.text.parts import input_lines
from hornbook.text.rows import ReadOptions, Row, row_document, short, too_long


class _Csv(csv.excel):
    strict = True


class _Tsv(csv.excel):
    delimiter, quoting = "\t", csv.QUOTE_NONE


_DIALECTS = {"csv": _Csv, "tsv": _Tsv}


class _Unfit(Exception):
    """The lines of a row cannot be given to the parser."""


class _Lines:
    """Gives lines to the csv module and knows which of them the present row consists of."""

    def __init__(self, lines: Iterator[Line], limit: int) -> None:
        self._lines, self._limit = lines, limit
        self.first: Line | None = None
        self.number = self.size = self.count = 0

    def begin(self) -> None:
        """The next line begins a row."""
        self.first, self.size, self.count = None, 0, 0

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        line = next(self._lines)
        self.first = self.first or line
        self.number = line.number + line.count - 1
        self.size, self.count = self.size + line.size + 1, self.count + line.count
        if line.overlong or self.size > self._limit:
            raise _Unfit
        try:
            text = line.data.decode()
        except UnicodeDecodeError as error:
            raise _Unfit(why_not_utf8(line.data, error)) from error
        return text + "\n" * line.count


def read(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """Each row after the header; a quoted cell may hold line ends."""
    csv.field_size_limit(sys.maxsize)  # rows are bounded here
    lines = _Lines(input_lines(file, raw, options.max_bytes), options.max_bytes)
    table = csv.reader(lines, _DIALECTS[file.format])
    header: list[str] | None = None
    while True:
        lines.begin()
        try:
            cells = next(table)
        except StopIteration:
            return
        except DamagedStream as error:
            yield Rejected(file.name, lines.number + 1, str(error), file.source)
            return
        except (csv.Error, _Unfit) as error:
            if header is None and file.part[0]:  # the first part says so
                return
            yield _damaged(file, lines, error, options)
            if header is None:
                return
            continue
        if header is not None:
            yield _row(file, lines, header, cells, options)
            continue
        header = cells
        if options.text_field.partition(".")[0] not in header or len(set(header)) < len(header):
            if not file.part[0]:
                yield Rejected(file.name, 1, _header_problem(header, options), file.source)
            return


def _header_problem(header: list[str], options: ReadOptions) -> str:
    names = ", ".join(header)[:100]
    if options.text_field in header:
        return f"a column is named twice (columns: {names!a})"
    return f"missing text: no column {options.text_field!r} (columns: {names!a})"


def _damaged(file: InputFile, lines: _Lines, error: Exception, options: ReadOptions) -> Rejected:
    assert lines.first is not None
    number, data = lines.first.number, lines.first.data
    if not str(error):
        return too_long(file, number, lines.size, options, data)
    reason = str(error) if isinstance(error, _Unfit) else f"invalid {file.format}: {short(error)}"
    where = f" (lines {number} to {lines.number})" if lines.number > number else ""
    return Rejected(file.name, number, reason + where, file.source, excerpt(data), lines.size)


def _row(file: InputFile, lines: _Lines, header: list[str], cells: list[str], options: ReadOptions) -> Row:
    first = lines.first
    assert first is not None
    if not cells or (len(cells) == 1 and not first.data.strip()):
        return Rejected(file.name, first.number, "blank line", file.source, "", lines.size, first.count, damaged=False)
    if len(cells) != len(header):
        reason = f"wrong number of cells: {len(cells)}, the header has {len(header)}"
        return Rejected(file.name, first.number, reason, file.source, excerpt(first.data), lines.size)
    return row_document(file, first.number, dict(zip(header, cells, strict=True)), options, first.data)
