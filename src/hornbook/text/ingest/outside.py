"""A reader of the user's own, named by its import path: its rows are numbered, bounded and quarantined as ours are."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hornbook.errors import HornbookError, UsageError
from hornbook.text.config.modules import load_function
from hornbook.text.ingest.charsets import UnfitRow, check_text
from hornbook.text.ingest.compressions import DamagedStream, Stream, decompressed
from hornbook.text.ingest.document import Document, ReadOptions, Rejected, Row, reject, to_documents, too_long
from hornbook.text.ingest.formats.archives.archives import Bounded, Budget
from hornbook.text.ingest.inputs import InputFile


def read(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """The rows that `options.reader` yields: each a mapping of fields, a `Document`, or a `Rejected`.

    It is called with the file, a stream of its decompressed bytes and the options. Raises UsageError, naming reader,
    file and row, where it fails or yields anything else.
    """
    assert options.reader is not None
    function = load_function(options.reader, "reader")
    stream = Bounded(decompressed(raw, file.compression, counted=True), Budget(file.size))
    number = 0
    try:
        for number, row in enumerate(function(file, stream, options), 1):
            try:
                yield _checked(file, number, row, options)
            except UnfitRow as why:
                yield reject(file, number, str(why))
    except DamagedStream as error:
        yield reject(file, number + 1, str(error))
    except (HornbookError, OSError, MemoryError):
        raise
    except Exception as error:  # it is anybody's code
        message = f"{options.reader} failed after row {number} of {file.name}"
        raise UsageError(f"{message}: {type(error).__name__}: {error}") from error


def _checked(file: InputFile, number: int, row: Any, options: ReadOptions) -> Row:
    if isinstance(row, Mapping):
        (row,) = to_documents(file, number, dict(row), options)
    if isinstance(row, Rejected):
        return row
    if not isinstance(row, Document):
        given = f"{options.reader} gave {type(row).__name__} for row {number} of {file.name}"
        raise UsageError(f"{given}: give a mapping of fields, a Document or a Rejected")
    check_text(row.text)
    data = row.text.encode()
    if len(data) > options.max_bytes:
        return too_long(file, number, len(data), options, data)
    origin = row.origin or f"{file.name}:{number}"
    return replace(row, id=row.id or origin, source=file.source, origin=origin)
