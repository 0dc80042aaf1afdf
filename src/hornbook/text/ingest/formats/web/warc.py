"""Web archives, WARC 1.0 and 1.1 (ISO 28500): pages through extraction, WET's conversions as text.

A row is a response, a resource or a conversion; other records say nothing that is text. Rows are counted from 1.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hornbook.text.ingest.charsets import UnfitRow, decode_declared, why_not_utf8
from hornbook.text.ingest.compressions import Stream, decompressed
from hornbook.text.ingest.document import Document, ReadOptions, Row, identifier, read_each, reject, whole_line
from hornbook.text.ingest.formats.web.html import page_text
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import Buffered, Line

_MAGIC = b"WARC/"
_HEAD_LIMIT = 2**16
_PAGES = ("text/html", "application/xhtml+xml")
_ROWS = ("response", "resource", "conversion")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Record(Line):
    """A record as a line: `data` and `size` are those of its block."""

    headers: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""


def read(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """One row per record that holds a page or text."""
    records = _records(Buffered(decompressed(raw, file.compression)), options.max_bytes)
    return read_each(file, records, lambda record: [_document(file, record, options)])


def _records(stream: Buffered, limit: int) -> Iterator[_Record]:
    number = 0
    # here the stream is at the beginning of a record, or at garbage before one
    while _skip_line_ends(stream):
        if stream.peek(5) != _MAGIC:
            number += 1
            yield _Record(number, b"", _find_record(stream), problem="not a WARC record: garbage between records")
            continue
        head, size, whole = stream.until(b"\r\n\r\n", _HEAD_LIMIT)
        headers = parse_headers(head) if whole and size <= _HEAD_LIMIT else {}
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 19):
            number += 1
            yield _Record(number, head[:_HEAD_LIMIT], size, problem="not a WARC record: its header cannot be read")
            _find_record(stream)
            continue
        block, available = stream.take(int(length), limit)
        if headers.get("warc-type") not in _ROWS and available == int(length):
            continue
        number += 1
        problem = ""
        if available < int(length):
            problem = f"truncated record: {available} of {length} bytes"
        elif stream.peek(4) not in (b"\r\n\r\n", b""):
            problem = "a record is longer than it says: its Content-Length is wrong"
        yield _Record(number, block or b"", available, overlong=block is None, headers=headers, problem=problem)
        if problem:
            _find_record(stream)


def _skip_line_ends(stream: Buffered) -> bool:
    """Pass over what stands between records; False at the end."""
    while (ahead := stream.peek(2)) == b"\r\n" or ahead[:1] == b"\n":
        stream.read(2 if ahead == b"\r\n" else 1)
    return bool(ahead)


def _find_record(stream: Buffered) -> int:
    """After damage: go on where a line looks like the beginning of a record; how many bytes were passed over."""
    passed = 0
    while stream.peek(5) != _MAGIC:
        _, size, came = stream.until(b"\n", 0)
        passed += size
        if not came:
            break
    return passed


def parse_headers(head: bytes) -> dict[str, str]:
    """Header lines by lower-case name, the first of each; bytes that are not UTF-8 are replaced."""
    headers: dict[str, str] = {}
    for line in head.decode("utf-8", "replace").splitlines()[1:]:
        name, colon, value = line.partition(":")
        if colon and name.strip():
            headers.setdefault(name.strip().lower(), value.strip())
    return headers


def _document(file: InputFile, record: _Record, options: ReadOptions) -> Row:
    if record.problem:
        raise UnfitRow(record.problem)
    block, headers = whole_line(record, options), record.headers
    kind, charset = content_type(headers.get("content-type", ""))
    if kind == "application/http":
        kind, charset, block = _payload(block, options.max_bytes)
    known = {"url": headers.get("warc-target-uri", "").strip("<>"), "date": headers.get("warc-date", "")}
    metadata: dict[str, Any] = {name: value for name, value in known.items() if value}
    name = headers.get("warc-record-id", "").strip("<>")
    if kind in _PAGES:
        text, own = page_text(block, charset)
        metadata = own | metadata
    elif kind != "text/plain":
        raise UnfitRow(f"not a page: {kind[:60]!a}", dropped=True)
    elif charset and charset.lower() not in ("utf-8", "utf8"):
        text = decode_declared(block, charset).encode("utf-8", "replace").decode()
    else:
        try:
            text = block.decode()
        except UnicodeDecodeError as error:
            return reject(file, record.number, why_not_utf8(error), block)
    origin = f"{file.name}:{record.number}"
    return Document(text, identifier(name, origin), file.source, metadata, origin)


def content_type(value: str) -> tuple[str, str]:
    """(media type, charset) of a Content-Type."""
    kind, _, rest = value.partition(";")
    charset = ""
    for part in rest.split(";"):
        name, _, given = part.partition("=")
        if name.strip().lower() == "charset":
            charset = given.strip().strip("\"'")
    return kind.strip().lower(), charset


def _payload(block: bytes, limit: int) -> tuple[str, str, bytes]:
    """(media type, charset, body) of an HTTP response, decoded as its headers say."""
    end = block.find(b"\r\n\r\n", 0, _HEAD_LIMIT)
    if not block.startswith(b"HTTP/") or end < 0:
        raise UnfitRow("not an HTTP response: its header cannot be read")
    head, body = block[:end], block[end + 4 :]
    status = head.split(b" ", 2)[1:2]
    if not status or not status[0][:3].startswith(b"2"):
        raise UnfitRow(f"HTTP status: {(status or [b''])[0][:3].decode('ascii', 'replace')!a}", dropped=True)
    headers = parse_headers(head)
    if "chunked" in headers.get("transfer-encoding", "").lower():
        body = _unchunked(body)
    kind, charset = content_type(headers.get("content-type", ""))
    return kind, charset, _uncompressed(body, headers.get("content-encoding", "").strip().lower(), limit)


def _unchunked(body: bytes) -> bytes:
    """Join the chunks; archives that joined them already keep the header, so what is not chunked stays."""
    parts, position = [], 0
    while (end := body.find(b"\r\n", position, position + 32)) >= 0:
        digits = body[position:end].partition(b";")[0].strip()
        try:
            size = int(digits, 16)
        except ValueError:
            break
        if size == 0:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        position = end + 2 + size + 2
    if not parts:
        return body
    raise UnfitRow("truncated chunks: the page ends early")


def _uncompressed(body: bytes, encoding: str, limit: int) -> bytes:
    if encoding in ("", "identity"):
        return body
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise UnfitRow(f"content encoding: {encoding[:40]!a} is not read")
    if encoding != "deflate" and not body.startswith(b"\x1f\x8b"):
        return body  # decoded by who archived it
    for bits in (47, -15):  # with a header of gzip or zlib, or without
        decoder = zlib.decompressobj(bits)
        try:
            data = decoder.decompress(body, limit + 1)
        except zlib.error:
            continue
        if len(data) > limit:
            raise UnfitRow(f"row longer than the limit: its page is compressed, max_document_bytes is {limit}")
        if decoder.eof:
            return data
    raise UnfitRow("damaged content encoding: the page cannot be decompressed")
