"""`.json`: an array of rows, read row by row; or, as many corpora name it, one object per line."""

import codecs
import json
from collections.abc import Iterator

from hornbook.files.strict_json import unique_keys
from hornbook.text.ingest.charsets import BOM, UnfitRow, json_name, plain_text
from hornbook.text.ingest.compressions import DamagedStream, Stream
from hornbook.text.ingest.document import ReadOptions, Rejected, Row, reject, row_documents, short, too_long
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import CHUNK, Buffered, read_lines
from hornbook.text.ingest.readers import read_json_lines

_WHITESPACE = " \t\r\n"


def read(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """Rows are counted from 1; after a row that is not JSON the rest of an array cannot be split into rows."""
    stream = Buffered(plain_text(raw, file.compression))
    number = 0
    try:
        start = stream.peek(CHUNK).removeprefix(BOM).lstrip()[:1]
        if start != b"[":
            yield from read_json_lines(file, read_lines(stream, options.max_bytes), options)
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
    decoder = json.JSONDecoder(object_pairs_hook=unique_keys)
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
        row = _value(decoder, file, number, text, options)
        if isinstance(row, Rejected):
            yield row
            return
        value, data = row
        if not isinstance(value, dict):
            yield reject(file, number, f"not an object: the row is a JSON {json_name(value)}")
            continue
        try:
            yield from row_documents(file, number, value, options)
        except UnfitRow as why:
            yield reject(file, number, str(why), data)
    shown = f"instead of {expected!r} there is {mark!a}" if mark else "the array is not closed"
    yield reject(file, number + 1, f"invalid JSON: {shown}")


def _value(
    decoder: json.JSONDecoder, file: InputFile, number: int, text: _Characters, options: ReadOptions
) -> tuple[object, bytes] | Rejected:
    """(value at the position, its text). What cannot be parsed may be half a row: more is read, up to the limit."""
    size = CHUNK
    while True:
        text.extend(size)
        try:
            value, end = decoder.raw_decode(text.characters)
            if end < len(text.characters) or text.ended:
                text.position = end
                return value, text.characters[:end].encode("utf-8", "replace")
        except (ValueError, RecursionError) as error:
            if text.ended or size > options.max_bytes:
                data = text.characters[:512].encode("utf-8", "replace")
                if len(text.characters) > options.max_bytes:
                    return too_long(file, number, len(text.characters), options, data)
                reason = "nested too deep" if isinstance(error, RecursionError) else short(error)
                return reject(file, number, f"invalid JSON: {reason}", data, 0)
        size *= 4
