"""Readers: one generator per format, yielding `Document` or `Rejected` for every row, never losing one.

A damaged row is yielded as `Rejected` with its place and reason; a damaged stream yields what came before
the damage and then one `Rejected`. Memory is bounded by `max_bytes` (plus a parquet page).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hornbook.text.document import Document, Rejected, excerpt
from hornbook.text.inputs import InputFile
from hornbook.text.lines import (
    BOM,
    DamagedStream,
    HashingFile,
    Line,
    decompressed,
    open_input,
    read_lines,
    read_pieces,
    why_not_utf8,
)

Row = Document | Rejected
_ID_LIMIT = 512
_BATCH_ROWS = 256
_DAMAGE = (OSError, pa.ArrowException, ValueError, KeyError, OverflowError)
"""What pyarrow raises on damaged files."""


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """What a reader needs besides the file."""

    text_field: str = "text"
    id_field: str = "id"
    max_bytes: int = 16 * 2**20


def read_file(file: InputFile, options: ReadOptions, on_digest: Callable[[str], None] | None = None) -> Iterator[Row]:
    """Yield every row of a file. `on_digest` gets the xxh3_128 of the file's bytes after the last row."""
    if file.problem:
        yield Rejected(file.name, 0, file.problem, file.source)
        return
    try:
        with open_input(file) as raw:
            hashing = HashingFile(raw)
            yield from _READERS[file.format](file, hashing, options)
            if file.format == "parquet":  # read at random places: hash it from the start
                raw.seek(0)
                hashing = HashingFile(raw)
            if on_digest is not None:
                on_digest(hashing.digest())
    except OSError as error:
        yield Rejected(file.name, 0, f"cannot read: {error.strerror or error}", file.source)


def _read_text(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """One document per file; a longer file becomes `path#0`, `path#1`, ..."""
    number = 0
    line = 1
    try:
        for piece in read_pieces(decompressed(raw, file.compression), options.max_bytes):
            name = file.name if piece.last and number == 0 else f"{file.name}#{number}"
            if number and piece.last and not piece.data:
                return
            data = piece.data.removeprefix(BOM) if number == 0 else piece.data
            line = piece.line
            yield _text_row(file, name, line, data)
            number += 1
    except DamagedStream as error:
        yield Rejected(file.name, line, str(error), file.source)


def _text_row(file: InputFile, name: str, line: int, data: bytes) -> Row:
    try:
        return Document(data.decode(), name, file.source, origin=name)
    except UnicodeDecodeError as error:
        place = line + data.count(b"\n", 0, error.start)
        return Rejected(file.name, place, why_not_utf8(data, error), file.source, excerpt(data), len(data))


class _DuplicateKey(ValueError):
    """A JSON object names a key twice."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKey(next(name for name in names if names.count(name) > 1))
    return found


def _read_jsonl(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    number = 0
    try:
        for line in read_lines(decompressed(raw, file.compression), options.max_bytes):
            number = line.number
            yield _json_row(file, line, options)
    except DamagedStream as error:
        yield Rejected(file.name, number + 1, str(error), file.source)


def _json_row(file: InputFile, line: Line, options: ReadOptions) -> Row:
    if line.overlong:
        reason = f"row longer than the limit: {line.size} bytes, max_document_bytes is {options.max_bytes}"
        return _bad_line(file, line, reason)
    if not line.data.strip():
        return Rejected(file.name, line.number, "blank line", file.source, "", line.size, line.count, damaged=False)
    try:
        row = json.loads(line.data.decode(), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        return _bad_line(file, line, _why_not_json(line, error))
    if not isinstance(row, dict):
        return _bad_line(file, line, f"not an object: the row is a JSON {_json_name(row)}")
    return _document(file, line, row, options)


def _why_not_json(line: Line, error: ValueError | RecursionError) -> str:
    if isinstance(error, UnicodeDecodeError):
        return why_not_utf8(line.data, error)
    if isinstance(error, _DuplicateKey):
        return f"duplicate key: {str(error)[:60]!a}"
    if isinstance(error, RecursionError):
        return "invalid JSON: nested too deep"
    if not line.ended:
        return "half-written last line: no line end and no valid JSON"
    return f"invalid JSON: {_short(error)}"


def _document(file: InputFile, line: Line, row: dict[str, Any], options: ReadOptions) -> Row:
    if options.text_field not in row:
        keys = ", ".join(list(row)[:8])
        return _bad_line(file, line, f"missing text: no key {options.text_field!r} (keys: {keys[:100]!a})")
    text = row.pop(options.text_field)
    if not isinstance(text, str):
        return _bad_line(file, line, f"text is not a string: it is a JSON {_json_name(text)}")
    if not is_valid_unicode(text):
        return _bad_line(file, line, "lone surrogate: the text is not valid Unicode")
    origin = f"{file.name}:{line.number}"
    name = _identifier(row.pop(options.id_field, None), origin)
    return Document(text, name, file.source, row, origin)


def is_valid_unicode(text: str) -> bool:
    """Whether a text can be written as UTF-8 (it has no lone surrogates)."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _identifier(value: Any, origin: str) -> str:
    """The row's own name where it is a usable one, else its origin."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        return origin
    name = str(value)
    return name if 0 < len(name) <= _ID_LIMIT and is_valid_unicode(name) else origin


def _json_name(value: Any) -> str:
    names = {bool: "boolean", int: "number", float: "number", str: "string", list: "array", dict: "object"}
    return "null" if value is None else names[type(value)]


def _short(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0][:120].encode("ascii", "backslashreplace").decode() if lines else type(error).__name__


def _bad_line(file: InputFile, line: Line, reason: str) -> Rejected:
    return Rejected(file.name, line.number, reason, file.source, excerpt(line.data), line.size)


def _read_parquet(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """Row group by row group; a damaged one is one `Rejected` that counts all of its rows."""
    del raw  # parquet is read at random places
    with open_input(file) as handle:
        try:
            table = pq.ParquetFile(pa.PythonFile(handle, mode="r"), pre_buffer=False)
            rows = table.metadata.num_rows
            problem = _column_problem(table.schema_arrow, options.text_field)
        except _DAMAGE as error:
            yield Rejected(file.name, 0, f"damaged parquet: {_short(error)}", file.source)
            return
        if problem:
            yield Rejected(file.name, 0, problem, file.source, rows=max(rows, 1))
            return
        first = 1
        for group in range(table.num_row_groups):
            yield from _read_group(file, table, group, first, options)
            first += table.metadata.row_group(group).num_rows
        if first - 1 != rows:
            reason = f"damaged parquet: the footer counts {rows} rows, its row groups {first - 1}"
            yield Rejected(file.name, 0, reason, file.source)


def _column_problem(schema: pa.Schema, name: str) -> str:
    if name not in schema.names:
        return f"missing text: no column {name!r} (columns: {', '.join(schema.names)[:100]!a})"
    kind = schema.field(name).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    if any(test(kind) for test in (*tests, *binary)):
        return ""
    return f"text is not a string: column {name!r} is {kind}"


def _read_group(file: InputFile, table: pq.ParquetFile, group: int, first: int, options: ReadOptions) -> Iterator[Row]:
    wanted = dict.fromkeys((options.text_field, options.id_field))
    names = [name for name in wanted if name in table.schema_arrow.names]
    rows, done = table.metadata.row_group(group).num_rows, 0
    try:
        for batch in table.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=names):
            texts = batch.column(0).cast(pa.large_binary())
            ids = batch.column(1).to_pylist() if len(names) == 2 else [None] * len(batch)
            for text, name in zip(texts, ids, strict=True):
                yield _parquet_row(file, first + done, text.as_py(), name, options)
                done += 1
        problem = "it ends early"
    except _DAMAGE as error:
        problem = _short(error)
    if done < rows:
        reason = f"damaged parquet: row group {group}, {problem}"
        yield Rejected(file.name, first + done, reason, file.source, rows=rows - done)


def _parquet_row(file: InputFile, row: int, data: bytes | None, name: Any, options: ReadOptions) -> Row:
    if data is None:
        return Rejected(file.name, row, "text is not a string: it is null", file.source)
    if len(data) > options.max_bytes:
        reason = f"row longer than the limit: {len(data)} bytes, max_document_bytes is {options.max_bytes}"
        return Rejected(file.name, row, reason, file.source, excerpt(data), len(data))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return Rejected(file.name, row, why_not_utf8(data, error), file.source, excerpt(data), len(data))
    origin = f"{file.name}:{row}"
    return Document(text, _identifier(name, origin), file.source, {}, origin)


_READERS: dict[str, Callable[[InputFile, HashingFile, ReadOptions], Iterator[Row]]] = {
    "text": _read_text,
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
}
