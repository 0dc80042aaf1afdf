"""What readers yield (documents and rejected rows), their options, and what they share on the way to them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Self, TypeVar

import pyarrow as pa

from hornbook.text.config.labels import LabelsConfig
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.charsets import UnfitRow, check_text, is_valid_unicode
from hornbook.text.ingest.compressions import DamagedStream, Stream
from hornbook.text.ingest.fields import lookup
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.labels.labelling import Labelling
from hornbook.text.ingest.labels.rows import label_rows
from hornbook.text.ingest.lines import Line, read_whole

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
    """A row that is not a document; or several rows, where `rows` is more than 1."""

    path: str
    line: int
    """Line or row in the file, counted from 1; 0 where the whole file is meant."""
    reason: str
    source: str
    excerpt: str = ""
    """The first bytes of the row as printable ASCII, for messages."""
    bytes: int = 0
    """Length of the row as read, where it is known."""
    rows: int = 1
    damaged: bool = True
    """False for rows that hold no document by design (blank lines): those are dropped, not quarantined."""

    @property
    def kind(self) -> str:
        """The reason up to the first colon: what the funnel counts."""
        return self.reason.partition(":")[0]


Row = Document | Rejected


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader needs besides the file; as in `SourceConfig`."""

    text_field: str = "text"
    id_field: str = "id"
    max_bytes: int = 16 * 2**20
    labels: LabelsConfig | None = None
    """What labels rows have: then `hornbook.text.ingest.labels.readers` reads them."""
    reader: str | None = None
    encoding: str = ""
    layout: str = "auto"
    columns: Sequence[str] = ()
    licence_field: str = "license"
    url_field: str = "url"
    date_field: str = "date"
    licence: str = ""
    date: str = ""

    @classmethod
    def of(cls, source: SourceConfig, max_bytes: int = 16 * 2**20, labels: LabelsConfig | None = None) -> Self:
        """The options of a source."""
        return cls(max_bytes=max_bytes, labels=labels, **source.model_dump(exclude={"paths", "split", "later"}))

    def to_json(self) -> dict[str, Any]:
        """For keys; without a reader from outside, columns or an encoding, those of versions that knew none."""
        labels = None if self.labels is None else self.labels.model_dump()
        options = asdict(self) | {"labels": labels}
        return {
            name: value for name, value in options.items() if name not in ("reader", "columns", "encoding") or value
        }

    @property
    def fields(self) -> dict[str, tuple[str, str]]:
        """Of licence, url and date: the field that holds it, and what holds where a document does not say."""
        return {
            "licence": (self.licence_field, self.licence),
            "url": (self.url_field, ""),
            "date": (self.date_field, self.date),
        }


Reader = Callable[[InputFile, Stream, ReadOptions], Iterator[Row]]
"""From a file, a stream of its bytes as stored, and options to rows. May end with DamagedStream or UnfitRow."""


def reject(
    file: InputFile, line: int, reason: str, data: bytes = b"", size: int = -1, *, rows: int = 1, damaged: bool = True
) -> Rejected:
    """A rejected row of a file. `data`: the row as read; `size`: its length where `data` is only its beginning."""
    head = data[:EXCERPT_BYTES].decode("utf-8", "backslashreplace")
    excerpt = head.encode("unicode_escape").decode("ascii")[: 2 * EXCERPT_BYTES]
    return Rejected(file.name, line, reason, file.source, excerpt, len(data) if size < 0 else size, rows, damaged)


def to_documents(file: InputFile, number: int, row: dict[str, Any], options: ReadOptions) -> Iterable[Row]:
    """The document of a row of fields, whose metadata are all but text and name, or its labelled documents.

    Raises UnfitRow.
    """
    if options.labels is not None:
        return _labelled_documents(file, number, row, options.labels, options)
    text = lookup(row, options.text_field)
    if text is None and options.text_field not in row:
        raise UnfitRow(f"missing text: no key {options.text_field!r} (keys: {', '.join(list(row)[:8])[:100]!a})")
    checked = check_text(text)
    row.pop(options.text_field, None)
    return [fields_document(file, number, checked, row, options)]


def _labelled_documents(
    file: InputFile, number: int, row: Mapping[str, Any], config: LabelsConfig, options: ReadOptions
) -> Iterator[Row]:
    origin = f"{file.name}:{number}"
    try:
        labelled = label_rows(config, row, identifier(row.get(options.id_field), origin), origin)
    except UnfitRow as error:
        yield replace(reject(file, number, str(error)), excerpt=ascii(dict(row))[:EXCERPT_BYTES])
        return
    for name, text, labels in labelled:
        size = len(text.encode())
        if size > options.max_bytes:
            yield replace(too_long(file, number, size, options), excerpt=ascii(text)[:EXCERPT_BYTES])
        else:
            yield Document(text, name, file.source, dict(row), origin, labels)


def fields_document(file: InputFile, number: int, text: str, fields: dict[str, Any], options: ReadOptions) -> Document:
    """The document of a text and the other fields of its row, one of which may name it."""
    origin = f"{file.name}:{number}"
    name = identifier(lookup(fields, options.id_field), origin)
    fields.pop(options.id_field, None)
    return Document(text, name, file.source, fields, origin)


Item = TypeVar("Item", bound=Line)


def read_each(file: InputFile, items: Iterable[Item], read: Callable[[Item], Iterable[Row]]) -> Iterator[Row]:
    """What `read` makes of each line or record, which may raise UnfitRow; a damaged stream ends with a row for it."""
    number = 0
    try:
        for item in items:
            number = item.number
            try:
                yield from read(item)
            except UnfitRow as why:
                yield reject(file, number, str(why), item.data, item.size, damaged=not why.dropped)
    except DamagedStream as error:
        yield reject(file, number + 1, str(error))


def whole_line(line: Line, options: ReadOptions) -> bytes:
    """The bytes of a line. Raises UnfitRow where it is beyond the limit."""
    if line.overlong:
        raise UnfitRow(why_too_long(line.size, options))
    return line.data


def read_at_once(file: InputFile, stream: Stream, options: ReadOptions, read: Callable[[bytes], Row]) -> Iterator[Row]:
    """What `read` makes of all bytes of a file; it may raise UnfitRow. Raises DamagedStream."""
    data, size = read_whole(stream, options.max_bytes)
    whole = Line(0, data or b"", size, overlong=data is None)
    yield from read_each(file, [whole], lambda line: [read(whole_line(line, options))])


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
    if not isinstance(value, str):  # asked first, since most are
        if value is None or isinstance(value, Mapping):
            return ""
        if isinstance(value, list | tuple):
            return ", ".join(filter(None, map(_as_text, value)))
    text = str(value)[:_FIELD_LIMIT]
    return text if is_valid_unicode(text) else ""


def too_long(file: InputFile, number: int, size: int, options: ReadOptions, data: bytes = b"") -> Rejected:
    """A row beyond the limit."""
    return reject(file, number, why_too_long(size, options), data, size)


def why_too_long(size: int, options: ReadOptions) -> str:
    return f"row longer than the limit: {size} bytes, max_document_bytes is {options.max_bytes}"


def identifier(value: Any, origin: str) -> str:
    """The row's own name where it is a usable one, else its origin."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return origin
    name = str(value)
    return name if 0 < len(name) <= _ID_LIMIT and is_valid_unicode(name) else origin


def short(error: Exception) -> str:
    """The first line of an error, as ASCII."""
    lines = str(error).splitlines()
    return lines[0][:120].encode("ascii", "backslashreplace").decode() if lines else type(error).__name__
