"""Project Gutenberg's texts: the book between the licences, and what its header says of it (layout "gutenberg")."""

import re
from collections.abc import Iterator
from typing import Any

from hornbook.text.ingest.charsets import BOM, UnfitRow, decode_declared, plain_text
from hornbook.text.ingest.compressions import Stream
from hornbook.text.ingest.document import Document, ReadOptions, Row, read_at_once
from hornbook.text.ingest.inputs import InputFile

_START = re.compile(rb"^\*\*\* ?START OF (?:THE|THIS) PROJECT GUTENBERG EBOOK[^\r\n]{0,400}", re.M | re.I)
_OLD_START = re.compile(rb"^\*END\*? ?THE SMALL PRINT[^\r\n]{0,200}", re.M | re.I)
_END = re.compile(
    rb"^(?:\*\*\* ?END OF (?:THE|THIS) PROJECT GUTENBERG EBOOK|End of (?:the |this )?Project Gutenberg)[^\r\n]{0,400}",
    re.M | re.I,
)
_HEADER_BYTES = 2**16
_FIELD = re.compile(rb"^(Title|Author|Release Date|Language|Character set encoding): ([^\r\n]{1,300})", re.M | re.I)
_NUMBER = re.compile(rb"\[e(?:book|text) #(\d{1,7})\]", re.I)
_CHARSETS = {"iso latin-1": "latin1", "ascii": "utf-8", "us-ascii": "utf-8"}


def read(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """One book per file; one without the line that ends the header is quarantined, for its licence would stay in it."""

    def book(data: bytes) -> Row:
        return _book(file, data, "utf-8" if options.encoding else "")

    return read_at_once(file, plain_text(raw, file.compression, options.encoding), options, book)


def _book(file: InputFile, data: bytes, recoded: str) -> Row:
    data = data.removeprefix(BOM)
    start = _START.search(data) or _OLD_START.search(data)
    if start is None:
        raise UnfitRow("no Gutenberg header: there is no line '*** START OF THE PROJECT GUTENBERG EBOOK'")
    header = data[: min(start.start(), _HEADER_BYTES)]
    metadata, charset = _header(header)
    end = _END.search(data, start.end())
    book = data[start.end() : end.start() if end else len(data)]
    text = decode_declared(book, recoded or charset, start.end())
    return Document(text.strip(), file.name, file.source, metadata, file.name)


def _header(header: bytes) -> tuple[dict[str, Any], str]:
    """(what the header says, the encoding of the book)."""
    fields = {name.decode().lower(): value.decode("utf-8", "replace").strip() for name, value in _FIELD.findall(header)}
    declared = (fields.pop("character set encoding", None) or "utf-8").lower()
    number = _NUMBER.search(header)
    metadata: dict[str, Any] = {name: fields[name] for name in ("title", "author", "language") if name in fields}
    if "release date" in fields:
        metadata["date"] = fields["release date"].partition("[")[0].strip()
    if number:
        metadata["url"] = f"https://www.gutenberg.org/ebooks/{int(number.group(1))}"
    return metadata, _CHARSETS.get(declared) or declared
