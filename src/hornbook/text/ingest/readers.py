"""Readers: one generator per format, yielding `Document` or `Rejected` for every row, never losing one.

A damaged row is yielded as `Rejected` with its number and reason; a damaged stream yields what came before
the damage and then one `Rejected`. Memory is bounded by `max_bytes` (plus a parquet page).
"""

import importlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from hornbook.errors import DoesNotFitError
from hornbook.files.strict_json import DuplicateKey, unique_keys
from hornbook.text.ingest.charsets import BOM, plain_text, why_not_utf8
from hornbook.text.ingest.compressions import DamagedStream, Stream
from hornbook.text.ingest.document import (
    Document,
    Reader,
    ReadOptions,
    Rejected,
    Row,
    json_name,
    keep_provenance,
    read_each,
    reject,
    row_document,
    short,
    too_long,
)
from hornbook.text.ingest.inputs import AT_RANDOM, InputFile
from hornbook.text.ingest.lines import Buffered, HashingFile, Line, open_input, read_pieces
from hornbook.text.ingest.parts import input_lines

_XML_HEAD = 4096

READERS = {
    "text": "readers:read_text",
    "jsonl": "readers:read_jsonl",
    "json": "formats.tables.json_array:read",
    "csv": "formats.tables.cells:read",
    "tsv": "formats.tables.cells:read",
    "parquet": "formats.tables.columns:read_parquet",
    "arrow": "formats.tables.arrow:read_arrow",
    "html": "formats.web.html:read",
    "warc": "formats.web.warc:read",
    "xml": "readers:read_xml",
    "latex": "formats.latex.arxiv:read_latex",
    "arxiv": "formats.latex.arxiv:read_arxiv",
    "gutenberg": "formats.dumps.gutenberg:read",
    "tar": "formats.archives.archives:read_tar",
    "zip": "formats.archives.archives:read_zip",
    "outside": "outside:read",
}
"""Format -> module of this room and function; imported when a file has it."""


def reader_of(name: str) -> Reader:
    """The reader of a format."""
    module, _, function = READERS[name].partition(":")
    return getattr(importlib.import_module(f"hornbook.text.ingest.{module}"), function)


def read_file(
    file: InputFile,
    options: ReadOptions,
    on_digest: Callable[[str], None] | None = None,
    reader: Reader | None = None,
) -> Iterator[Row]:
    """Yield every row of a file or of its part. After the last row of the first part `on_digest` gets the xxh3_128
    of all the file's bytes.

    `reader`: another than the format's own.
    """
    if file.problem:
        yield reject(file, 0, file.problem)
        return
    try:
        with open_input(file) as raw:
            hashing = HashingFile(raw)
            for row in (reader or reader_of(file.format))(file, hashing, options):
                if isinstance(row, Document):
                    keep_provenance(row, options)
                yield row
            if file.part[0]:  # the first part hashes all of the file
                return
            if file.format in AT_RANDOM:  # hash it from the start
                raw.seek(0)
                hashing = HashingFile(raw)
            if on_digest is not None:
                on_digest(hashing.digest())
    except OSError as error:
        yield reject(file, 0, f"cannot read: {error.strerror or error}")
    except MemoryError as error:
        raise DoesNotFitError(f"{file.name}: reading it takes more memory than there is") from error


def read_text(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """One document per file; a longer file becomes `path#0`, `path#1`, ..."""
    number = 0
    line = 1
    try:
        for piece in read_pieces(plain_text(raw, file.compression), options.max_bytes):
            name = file.name if piece.last and number == 0 else f"{file.name}#{number}"
            if number and piece.last and not piece.data:
                return
            data = piece.data.removeprefix(BOM) if number == 0 else piece.data
            line = piece.line
            yield _text_row(file, name, line, data)
            number += 1
    except DamagedStream as error:
        yield reject(file, line, str(error))


def _text_row(file: InputFile, name: str, line: int, data: bytes) -> Row:
    try:
        return Document(data.decode(), name, file.source, origin=name)
    except UnicodeDecodeError as error:
        number = line + data.count(b"\n", 0, error.start)
        return reject(file, number, why_not_utf8(data, error), data)


def read_jsonl(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """One document per line."""
    return read_each(file, input_lines(file, raw, options.max_bytes), lambda line: json_row(file, line, options))


def json_row(file: InputFile, line: Line, options: ReadOptions) -> list[Row]:
    """The document of a line of JSON."""
    row = json_object(file, line, options)
    return [row if isinstance(row, Rejected) else row_document(file, line.number, row, options, line.data)]


def json_object(file: InputFile, line: Line, options: ReadOptions) -> dict[str, Any] | Rejected:
    """The object of a line of JSON, or what is wrong with the line."""
    if line.overlong:
        return too_long(file, line.number, line.size, options, line.data)
    if not line.data.strip():
        return reject(file, line.number, "blank line", b"", line.size, rows=line.count, damaged=False)
    try:
        row = json.loads(line.data.decode(), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        return reject(file, line.number, _why_not_json(line, error), line.data, line.size)
    if not isinstance(row, dict):
        return reject(file, line.number, f"not an object: the row is a JSON {json_name(row)}", line.data, line.size)
    return row


def _why_not_json(line: Line, error: ValueError | RecursionError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return why_not_utf8(line.data, error)
    if isinstance(error, DuplicateKey):
        return f"duplicate key: {str(error)[:60]!a}"
    if isinstance(error, RecursionError):
        return "invalid JSON: nested too deep"
    if not line.ended:
        return "half-written last line: no line end and no valid JSON"
    return f"invalid JSON: {short(error)}"


def read_xml(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """Dumps in XML: MediaWiki's pages-articles and StackExchange's Posts, told apart by their beginning."""
    from hornbook.text.ingest.formats.dumps import stackexchange, wikipedia

    stream = Buffered(plain_text(raw, file.compression))
    try:
        head, rows = stream.peek(_XML_HEAD), 0
        if b"<mediawiki" in head or b"<posts" in head:
            read_rows = wikipedia.read_pages if b"<mediawiki" in head else stackexchange.read_posts
            for row in read_rows(file, stream, options):
                rows += 1
                yield row
            if not rows:
                yield reject(file, 0, "empty dump: it holds no page and no post", damaged=False)
        else:
            reason = "unknown XML: neither MediaWiki's <mediawiki> nor StackExchange's <posts> is near its beginning"
            yield reject(file, 0, reason, head, 0)
    except DamagedStream as error:
        yield reject(file, 0, str(error))
