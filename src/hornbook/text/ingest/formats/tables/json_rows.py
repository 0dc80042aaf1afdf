"""`.jsonl`: a row per line; `.json`: an array of rows, read row by row, or, as many corpora name it, a row per line."""

import codecs
import json
from collections.abc import Iterable, Iterator
from typing import Any

from hornbook.files.strict_json import DuplicateKey, unique_keys
from hornbook.text.ingest.charsets import BOM, UnfitRow, decode_utf8, json_name, plain_text
from hornbook.text.ingest.compressions import DamagedStream, Stream
from hornbook.text.ingest.document import ReadOptions, Row, read_each, reject, short, to_documents, too_long, whole_line
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import BEGINNING, CHUNK, Buffered, Line, read_lines, with_line_feeds
from hornbook.text.ingest.parts import input_lines

_LONGEST_INTEGER = 4300
"""Digits that Python makes an integer of (`sys.int_info.default_max_str_digits`)."""


def _integer(digits: str) -> int | str:
    """The number; of one with thousands of digits, which a row may have beside its text, the digits."""
    return int(digits) if len(digits) < _LONGEST_INTEGER else digits


_DECODER = json.JSONDecoder(object_pairs_hook=unique_keys, parse_int=_integer)
_WHITESPACE = " \t\r\n"


def read_jsonl(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """The documents of the object of each line."""
    return _rows_of_lines(file, input_lines(file, raw, options.max_bytes, options.encoding), options)


def _rows_of_lines(file: InputFile, lines: Iterable[Line], options: ReadOptions) -> Iterator[Row]:
    def read(line: Line) -> Iterable[Row]:
        data = whole_line(line, options)
        if not data.strip():
            return [reject(file, line.number, "blank line", b"", line.size, rows=line.count, damaged=False)]
        return to_documents(file, line.number, _json_object(decode_utf8(data, options.encoding), line.ended), options)

    return read_each(file, lines, read)


def _json_object(text: str, ended: bool) -> dict[str, Any]:
    """The object of a line of JSON. Raises UnfitRow."""
    try:
        row = _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        raise UnfitRow(_why_not_json(error, ended)) from error
    if not isinstance(row, dict):
        raise UnfitRow(f"not an object: the row is a JSON {json_name(row)}")
    return row


def _why_not_json(error: ValueError | RecursionError, ended: bool) -> str:
    if isinstance(error, DuplicateKey):
        return f"duplicate key: {str(error)[:60]!a}"
    if isinstance(error, RecursionError):
        return "invalid JSON: nested too deep"
    if not ended:
        return "half-written last line: no line end and no valid JSON"
    return f"invalid JSON: {short(error)}"


def read_json(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """Rows are counted from 1; after a row that is not JSON the rest of an array cannot be split into rows."""
    stream = Buffered(with_line_feeds(plain_text(raw, file.compression, options.encoding)))
    number = 0
    try:
        start = stream.peek(CHUNK).removeprefix(BOM).lstrip()[:1]
        if start != b"[":
            yield from _rows_of_lines(file, read_lines(stream, options.max_bytes), options)
            return
        for row in _rows(file, _Characters(stream), options):
            number += 1
            yield row
    except DamagedStream as error:
        yield reject(file, number + 1, str(error))


class _Characters:
    """The characters of a stream, decoded on demand."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self.characters, self.position = stream, "", 0
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.ended = False

    def extend(self, least: int) -> None:
        """Drop what is before the position; hold at least `least` characters, or all there are."""
        parts, size = [self.characters[self.position :]], len(self.characters) - self.position
        while size < least and not self.ended:
            chunk = self._stream.read(CHUNK)
            self.ended = not chunk
            try:
                parts.append(self._decoder.decode(chunk, final=self.ended))
            except UnicodeDecodeError as error:
                raise DamagedStream(f"invalid UTF-8: byte 0x{error.object[error.start]:02x} in the array") from error
            size += len(parts[-1])
        self.characters, self.position = "".join(parts), 0

    def next(self) -> str:
        """The next character that is not whitespace; empty at the end."""
        while True:
            while self.position < len(self.characters) and self.characters[self.position] in _WHITESPACE:
                self.position += 1
            if self.position < len(self.characters) or self.ended:
                return self.characters[self.position : self.position + 1]
            self.extend(1)


def _rows(file: InputFile, text: _Characters, options: ReadOptions) -> Iterator[Row]:
    number, expected = 0, "["
    while (mark := text.next()) == expected or (mark == "]" and expected == ","):
        text.position += 1
        if mark == "]":
            if text.next():
                yield reject(file, number + 1, "invalid JSON: something follows the array")
            return
        ahead = text.next()
        if not ahead or (expected == "[" and ahead == "]"):
            expected = ","
            continue
        number, expected = number + 1, ","
        row = _value(file, number, text, options)
        if not isinstance(row, tuple):
            yield row
            return
        value, data = row
        if not isinstance(value, dict):
            yield reject(file, number, f"not an object: the row is a JSON {json_name(value)}")
            continue
        try:
            yield from to_documents(file, number, value, options)
        except UnfitRow as why:
            yield reject(file, number, str(why), data)
    shown = f"instead of {expected!r} there is {mark!a}" if mark else "the array is not closed"
    yield reject(file, number + 1, f"invalid JSON: {shown}")


def _value(file: InputFile, number: int, text: _Characters, options: ReadOptions) -> tuple[object, bytes] | Row:
    """(value at the position, its text). What cannot be parsed may be half a row: more is read, up to the limit."""
    size = CHUNK
    while True:
        text.extend(size)
        try:
            value, end = _DECODER.raw_decode(text.characters)
            if end < len(text.characters) or text.ended:
                text.position = end
                return value, text.characters[:end].encode("utf-8", "replace")
        except (ValueError, RecursionError) as error:
            if text.ended or size > options.max_bytes:
                data = text.characters[:BEGINNING].encode("utf-8", "replace")
                if len(text.characters) > options.max_bytes:
                    return too_long(file, number, len(text.characters), options, data)
                reason = "nested too deep" if isinstance(error, RecursionError) else short(error)
                return reject(file, number, f"invalid JSON: {reason}", data, 0)
        size *= 4
