"""Web archives, WARC 1.0 and 1.1 (ISO 28500): pages through extraction, WET's conversions as text.

A row is a response, a resource or a conversion; other records say nothing that is text. Rows are counted from 1.
"""

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hornbook.text.ingest.charsets import UnfitRow, decode_declared, decode_whole
from hornbook.text.ingest.compressions import Stream, decompressed
from hornbook.text.ingest.document import Document, ReadOptions, Row, identifier, read_each, whole_line
from hornbook.text.ingest.formats.web.html import page_text
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import Buffered, Line

_MAGIC = b"WARC/"
_HEAD_LIMIT = 2**16
_FOLD, _LINE_END = re.compile(r"\r?\n[ \t]+"), re.compile(r"\r?\n")
_HEAD_END = re.compile(rb"\r?\n\r?\n")
_CHUNK = re.compile(rb"[ \t]*([0-9a-fA-F]{1,15})[ \t]*(?:;[^\r\n]{0,4096})?\r?\n")
"""The line before a chunk: its size, and extensions (RFC 9112, 7.1)."""
_NOT_READ = ("br", "zstd", "compress", "x-compress", "dcb", "dcz", "exi", "pack200-gzip", "aes128gcm")
"""Registered content codings that are not decoded."""
_OWN = "metadata:"
"""The scheme of what wget writes of itself: its log, its arguments, a list of its files."""
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
        head, size, whole = _read_head(stream)
        headers = parse_headers(head) if whole and size <= _HEAD_LIMIT else {}
        length = headers.get("content-length", "")
        if not (length.isascii() and length.isdigit() and len(length) < 19):
            number += 1
            size += _find_record(stream)
            yield _Record(number, head[:_HEAD_LIMIT], size, problem="not a WARC record: its header cannot be read")
            continue
        block, available = stream.take(int(length), limit)
        if headers.get("warc-type") not in _ROWS and available == int(length):
            continue
        number += 1
        problem = ""
        if available < int(length):
            problem = f"truncated record: {available} of {length} bytes"
        elif (after := stream.peek(4)) and not after.startswith((b"\r\n\r\n", b"\n\n")):
            problem = "a record is longer than it says: its Content-Length is wrong"
        yield _Record(number, block or b"", available, overlong=block is None, headers=headers, problem=problem)
        if problem:
            _find_record(stream)


def _read_head(stream: Buffered) -> tuple[bytes, int, bool]:
    """(lines up to the first empty one, their bytes, whether there was one); some archives end lines with LF alone."""
    lines: list[bytes] = []
    size = 0
    while size <= _HEAD_LIMIT:
        line, length, whole = stream.until(b"\n", _HEAD_LIMIT)
        lines.append(line)
        size += length
        if not whole or not line.strip(b"\r\n"):
            return b"".join(lines), size, whole
    return b"".join(lines), size, False


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
    """Header lines by lower-case name, the first of each; bytes that are not UTF-8 are replaced, folds are joined."""
    headers: dict[str, str] = {}
    for line in _LINE_END.split(_FOLD.sub(" ", head.decode("utf-8", "replace")))[1:]:
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
    if headers.get("warc-target-uri", "").strip("<>").startswith(_OWN):
        raise UnfitRow("not a page: a record of the crawler about itself", dropped=True)
    known = {"url": headers.get("warc-target-uri", "").strip("<>"), "date": headers.get("warc-date", "")}
    metadata: dict[str, Any] = {name: value for name, value in known.items() if value}
    name = headers.get("warc-record-id", "").strip("<>")
    if kind in _PAGES:
        text, own = page_text(block, charset, options.encoding)
        metadata = own | metadata
    elif kind != "text/plain":
        raise UnfitRow(f"not a page: {kind[:60]!a}", dropped=True)
    elif charset := options.encoding or charset:
        text = decode_declared(block, charset).encode("utf-8", "replace").decode()
    else:
        text = decode_whole(block)
    origin = f"{file.name}:{record.number}"
    return Document(text, identifier(name, origin), file.source, metadata, origin)


def content_type(value: str) -> tuple[str, str]:
    """(media type, charset) of a Content-Type."""
    kind, _, rest = value.partition(";")
    charset = ""
    for part in rest.split(";"):
        name, _, given = part.partition("=")
        if name.strip().lower() == "charset" and not charset:
            charset = given.strip().strip("\"'")
    return kind.strip().lower(), charset


def _payload(block: bytes, limit: int) -> tuple[str, str, bytes]:
    """(media type, charset, body) of an HTTP response, decoded as its headers say."""
    end = _HEAD_END.search(block, 0, _HEAD_LIMIT)
    if not block.startswith(b"HTTP/") or end is None:
        raise UnfitRow("not an HTTP response: its header cannot be read")
    head, body = block[: end.start()], block[end.end() :]
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
    parts: list[bytes] = []
    position = 0
    while (line := _CHUNK.match(body, position)) is not None:
        size, start = int(line.group(1), 16), line.end()
        end = start + size
        if size and not body.startswith((b"\r\n", b"\n"), end):
            if not parts and end < len(body):
                return body
            break
        parts.append(body[start:end])
        if not size:
            return b"".join(parts)
        position = end + (2 if body.startswith(b"\r", end) else 1)
    if not parts and line is None:
        return body
    raise UnfitRow(f"damaged chunks: no chunk begins or ends at byte {position} of {len(body)} of the body")


def _uncompressed(body: bytes, encoding: str, limit: int) -> bytes:
    if encoding in _NOT_READ:
        raise UnfitRow(f"content encoding: {encoding!a} is not read")
    if encoding not in ("gzip", "x-gzip", "deflate"):  # as browsers do: none, UTF-8 and the like are no encodings
        return body
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
