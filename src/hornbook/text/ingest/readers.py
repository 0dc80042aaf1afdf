"""Readers: one generator per format, yielding `Document` or `Rejected` for every row, never losing one.

A damaged row is yielded as `Rejected` with its number and reason; a damaged stream yields what came before
the damage and then one `Rejected`. Memory is bounded by `max_bytes` (plus a parquet page).
"""

from collections.abc import Callable, Iterator

from hornbook.errors import DoesNotFitError
from hornbook.settings.fields import named
from hornbook.text.ingest.charsets import BOM, UnfitRow, decode_utf8, plain_text
from hornbook.text.ingest.compressions import DamagedStream, Stream
from hornbook.text.ingest.document import Document, Reader, ReadOptions, Row, keep_provenance, reject
from hornbook.text.ingest.fields import partition_columns
from hornbook.text.ingest.inputs import AT_RANDOM, InputFile
from hornbook.text.ingest.lines import Buffered, HashingFile, digest_input, open_input, read_pieces

_XML_HEAD = 4096

READERS = {
    "text": "readers:read_text",
    "jsonl": "formats.tables.json_rows:read_jsonl",
    "json": "formats.tables.json_rows:read_json",
    "csv": "formats.tables.cells:read",
    "tsv": "formats.tables.cells:read",
    "parquet": "formats.tables.columns:read_parquet",
    "arrow": "formats.tables.columns:read_arrow",
    "html": "formats.web.html:read",
    "pdf": "formats.office:read",
    "docx": "formats.office:read",
    "warc": "formats.web.warc:read",
    "xml": "readers:read_xml",
    "latex": "formats.latex.arxiv:read_latex",
    "arxiv": "formats.latex.arxiv:read_arxiv",
    "gutenberg": "formats.dumps.gutenberg:read",
    "tar": "formats.archives.archives:read_tar",
    "zip": "formats.archives.archives:read_zip",
    "outside": "outside:read",
    "labelled": "labels.readers:read",
}
"""Format (of any file whose rows have labels: labelled) -> module of this room and function; imported when needed."""


def read_stream(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """The rows of a file's bytes. Where its reader gives up with DamagedStream or UnfitRow, a last row says why."""
    read: Reader = named(f"text.ingest.{READERS['labelled' if options.labels else file.format]}")
    try:
        yield from read(file, raw, options)
    except (DamagedStream, UnfitRow) as error:
        yield reject(file, 0, str(error))


def read_file(file: InputFile, options: ReadOptions, on_digest: Callable[[str], None] | None = None) -> Iterator[Row]:
    """Every row of a file or of its part. After the first part `on_digest` gets the hash of the whole file."""
    if file.problem:
        yield reject(file, 0, file.problem)
        return
    try:
        with open_input(file) as raw:
            hashing, columns = HashingFile(raw), partition_columns(file.name)
            for row in read_stream(file, hashing, options):
                if isinstance(row, Document):
                    for name, value in columns.items():
                        row.metadata.setdefault(name, value)
                    keep_provenance(row, options)
                yield row
            if file.part[0]:  # the first part hashes all of the file
                return
            if file.format in AT_RANDOM:  # hash it from the start
                raw.seek(0)
                hashing = HashingFile(raw)
            if on_digest is not None:
                on_digest(digest_input(file, hashing))
    except OSError as error:
        yield reject(file, 0, f"cannot read: {error.strerror or error}")
    except MemoryError as error:
        raise DoesNotFitError(f"{file.name}: reading it takes more memory than there is") from error


def read_text(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """One document per file; a longer file becomes `path#0`, `path#1`, ..."""
    line = 1
    try:
        pieces = read_pieces(plain_text(raw, file.compression, options.encoding), options.max_bytes)
        for number, (line, data, last) in enumerate(pieces):
            name = file.name if last and number == 0 else f"{file.name}#{number}"
            if number and last and not data:
                return
            yield _text_row(file, name, line, data if number else data.removeprefix(BOM), options)
    except DamagedStream as error:
        yield reject(file, line, str(error))


def _text_row(file: InputFile, name: str, line: int, data: bytes, options: ReadOptions) -> Row:
    try:
        return Document(decode_utf8(data, options.encoding), name, file.source, origin=name)
    except UnfitRow as why:
        cause = why.__cause__
        before = cause.start if isinstance(cause, UnicodeDecodeError) else 0
        return reject(file, line + data.count(b"\n", 0, before), str(why), data)


def read_xml(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """Dumps in XML: MediaWiki's pages-articles and StackExchange's Posts, told apart by their beginning."""
    from hornbook.text.ingest.formats.dumps import stackexchange, wikipedia

    stream = Buffered(plain_text(raw, file.compression, options.encoding))
    head = stream.peek(_XML_HEAD)
    if b"<mediawiki" in head or b"<posts" in head:
        read_rows = wikipedia.read_pages if b"<mediawiki" in head else stackexchange.read_posts
        rows = read_rows(file, stream, options)
        yield next(rows, reject(file, 0, "empty dump: it holds no page and no post", damaged=False))
        yield from rows
    else:
        reason = "unknown XML: neither MediaWiki's <mediawiki> nor StackExchange's <posts> is near its beginning"
        yield reject(file, 0, reason, head, 0)
