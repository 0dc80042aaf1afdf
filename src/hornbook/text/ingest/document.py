"""What readers yield (documents, and rows that are none), their options, and the way from a row to a document."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from hornbook.text.config.labels import LabelsConfig
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.charsets import why_not_utf8
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.labels.labelling import Labelling
from hornbook.text.ingest.lines import HashingFile, Line

EXCERPT_BYTES = 160
_ID_LIMIT = 512
_FIELD_LIMIT = 2048
DAMAGE = (OSError, pa.ArrowException, ValueError, KeyError, OverflowError)
"""What pyarrow raises on damaged files."""


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its name and where it came from."""

    text: str
    id: str
    """The row's own name; where it has none, its origin."""
    source: str
    metadata: dict[str, Any] = field(default_factory=dict)
    """The row's other keys (JSON lines)."""
    origin: str = ""
    """Path and row: `path` or `path#part` for plain text, `path:row` (counted from 1) for rows."""
    labels: Labelling | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row (or, where `rows` is more than 1, a stretch of rows) that is not a document."""

    path: str
    line: int
    """Line or row in the file, counted from 1; 0 where the whole file is meant."""
    reason: str
    source: str
    excerpt: str = ""
    """The first bytes of the row, for people."""
    bytes: int = 0
    """Length of the row as read, where it is known."""
    rows: int = 1
    damaged: bool = True
    """False for rows that are empty by nature (blank lines): those are dropped, not quarantined."""

    @property
    def kind(self) -> str:
        """The reason without its particulars: what the funnel counts."""
        return self.reason.partition(":")[0]


Row = Document | Rejected


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader needs besides the file; as in `SourceConfig`."""

    text_field: str = "text"
    id_field: str = "id"
    max_bytes: int = 16 * 2**20
    labels: LabelsConfig | None = None
    """Rows have labels: `hornbook.text.ingest.labels.readers` reads them."""
    layout: str = "auto"
    licence_field: str = "license"
    url_field: str = "url"
    date_field: str = "date"
    licence: str = ""
    date: str = ""

    @classmethod
    def of(cls, source: SourceConfig, max_bytes: int = 16 * 2**20, labels: LabelsConfig | None = None) -> Self:
        """The options of a source."""
        return cls(max_bytes=max_bytes, labels=labels, **source.model_dump(exclude={"paths", "split", "later"}))

    @property
    def fields(self) -> dict[str, tuple[str, str]]:
        """Of licence, url and date: the field that holds it, and what holds where a document does not say."""
        return {
            "licence": (self.licence_field, self.licence),
            "url": (self.url_field, ""),
            "date": (self.date_field, self.date),
        }


Reader = Callable[[InputFile, HashingFile, ReadOptions], Iterator[Row]]


def lookup(row: Mapping[str, Any], name: str) -> Any:
    """The value of a field; `a.b` is key b within a where there is no key of that whole name. None where absent."""
    if name in row:
        return row[name]
    first, dot, rest = name.partition(".")
    inner = row.get(first) if dot else None
    return lookup(inner, rest) if isinstance(inner, Mapping) else None


def row_document(file: InputFile, number: int, row: dict[str, Any], options: ReadOptions, data: bytes = b"") -> Row:
    """The document of a row of fields; all but text and name are its metadata. `data`: the row as read."""

    def rejected(reason: str) -> Rejected:
        return Rejected(file.name, number, reason, file.source, excerpt(data), len(data))

    text = lookup(row, options.text_field)
    if text is None and options.text_field not in row:
        return rejected(f"missing text: no key {options.text_field!r} (keys: {', '.join(list(row)[:8])[:100]!a})")
    if not isinstance(text, str):
        return rejected(f"text is not a string: it is a JSON {json_name(text)}")
    if not is_valid_unicode(text):
        return rejected("lone surrogate: the text is not valid Unicode")
    row.pop(options.text_field, None)
    origin = f"{file.name}:{number}"
    name = identifier(lookup(row, options.id_field), origin)
    row.pop(options.id_field, None)
    return Document(text, name, file.source, row, origin)


def text_document(
    file: InputFile, number: int, data: bytes, name: str = "", metadata: dict[str, Any] | None = None
) -> Row:
    """A document of bytes that should be UTF-8."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return Rejected(file.name, number, why_not_utf8(data, error), file.source, excerpt(data), len(data))
    origin = f"{file.name}:{number}"
    return Document(text, identifier(name, origin), file.source, metadata or {}, origin)


def keep_provenance(document: Document, options: ReadOptions) -> None:
    """Fill in licence, url and date: the field that the recipe maps, else what the reader knows, else the constant."""
    metadata = document.metadata
    for name, (mapped, constant) in options.fields.items():
        value = _as_text(lookup(metadata, mapped)) or _as_text(metadata.get(name)) or constant
        if value:
            metadata[name] = value
        else:
            metadata.pop(name, None)


def _as_text(value: Any) -> str:
    if value is None or isinstance(value, Mapping):
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_as_text, value)))
    text = str(value)[:_FIELD_LIMIT]
    return text if is_valid_unicode(text) else ""


def too_long(file: InputFile, number: int, size: int, options: ReadOptions, data: bytes = b"") -> Rejected:
    """A row beyond the limit."""
    reason = f"row longer than the limit: {size} bytes, max_document_bytes is {options.max_bytes}"
    return Rejected(file.name, number, reason, file.source, excerpt(data), size)


def bad_line(file: InputFile, line: Line, reason: str) -> Rejected:
    """A line that is no row."""
    return Rejected(file.name, line.number, reason, file.source, excerpt(line.data), line.size)


def is_valid_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8 (it has no lone surrogates)."""
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


def identifier(value: Any, origin: str) -> str:
    """The row's own name where it is a usable one, else its origin."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return origin
    name = str(value)
    return name if 0 < len(name) <= _ID_LIMIT and is_valid_unicode(name) else origin


def json_name(value: Any) -> str:
    """What a value is called in JSON."""
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return "null" if value is None else names.get(type(value), type(value).__name__)


def short(error: Exception) -> str:
    """The first line of an error, as ASCII."""
    lines = str(error).splitlines()
    return lines[0][:120].encode("ascii", "backslashreplace").decode() if lines else type(error).__name__


def excerpt(data: bytes) -> str:
    """The beginning of a row as printable ASCII."""
    head = data[:EXCERPT_BYTES].decode("utf-8", "backslashreplace")
    return head.encode("unicode_escape").decode("ascii")[: 2 * EXCERPT_BYTES]
