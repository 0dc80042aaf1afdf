"""Tables of columns: parquet, batch by batch; and rows of batches, which Arrow's streams have too (`arrow`)."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hornbook.text.ingest.charsets import UnfitRow, why_not_utf8
from hornbook.text.ingest.compressions import Stream
from hornbook.text.ingest.document import DAMAGE, ReadOptions, Row, fields_document, reject, short, too_long
from hornbook.text.ingest.formats.tables.page_sizes import Chunk, Excess, InPieces, parquet_chunks, parquet_pages
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import BEGINNING, open_input

_BATCH_ROWS, _BATCH_BYTES = 256, 2**26
"""Most rows that are decoded at once, and the most bytes that they may take."""
_TEXTS = (pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view())

Read = Callable[[pa.RecordBatch, int], Iterator[Iterable[Row]]]
"""From a batch and the number of its first row to what each of its rows becomes."""


def read_parquet(file: InputFile, _: Stream, options: ReadOptions) -> Iterator[Row]:
    """A document per row. The file is opened anew, for it is read at random offsets."""
    return read_row_groups(
        file,
        lambda schema: wanted_columns(schema, options),
        lambda batch, first: ((row,) for row in batch_rows(file, batch, first, options)),
    )


def read_row_groups(file: InputFile, columns: Callable[[pa.Schema], list[str]], read: Read) -> Iterator[Row]:
    """Row group by row group (those of the file's part); a damaged one is one `Rejected` that counts all of its rows.

    columns: those that `read` asks for; raises UnfitRow where a table of this schema cannot be read.
    """
    part, parts = file.part
    with open_input(file) as handle:
        source = InPieces(handle)
        rows = 1
        try:
            table = pq.ParquetFile(pa.PythonFile(source, mode="r"), pre_buffer=False)
            rows = table.metadata.num_rows
            names = columns(table.schema_arrow)
            chunks = parquet_chunks(source)
        except UnfitRow as why:
            if not part:  # the first part says so for all
                yield reject(file, 0, str(why), size=file.size, rows=max(rows, 1))
            return
        except DAMAGE as error:
            yield reject(file, 0, f"damaged parquet: {short(error)}", size=file.size, rows=max(rows, 1))
            return
        groups, first = min(table.num_row_groups, len(chunks)), 1
        ours = range(groups * part // parts, groups * (part + 1) // parts)
        for group in range(groups):  # of all parts, since `first` is the number of the group's first row in the file
            size = table.metadata.row_group(group).num_rows
            if group in ours:
                batches = _batches(source, table, group, chunks[group], names)
                yield from _read_group(file, group, first, size, batches, read)
            first += size
        if first - 1 != rows and not part:
            yield reject(file, 0, f"damaged parquet: the footer counts {rows} rows, its row groups {first - 1}")


def _batches(
    source: InPieces, table: pq.ParquetFile, group: int, chunks: list[Chunk], names: list[str]
) -> Iterator[pa.RecordBatch]:
    size = rows_at_once(source, chunks, names)
    yield from table.iter_batches(batch_size=size, row_groups=[group], columns=names)


def _read_group(
    file: InputFile, group: int, first: int, rows: int, batches: Iterator[pa.RecordBatch], read: Read
) -> Iterator[Row]:
    """Row group number `group`, which has rows first..first + rows - 1 of the file."""
    done = 0
    try:
        for batch in batches:
            for rows_of_one in read(batch, first + done):
                yield from rows_of_one
                done += 1
        problem = f"damaged parquet: row group {group}, it ends early"
    except Excess as error:
        problem = f"parquet bomb: row group {group}, {error}"
    except DAMAGE as error:
        problem = f"damaged parquet: row group {group}, {short(error)}"
    if done < rows:
        yield reject(file, first + done, problem, rows=rows - done)


def rows_at_once(source: InPieces, chunks: list[Chunk], names: list[str]) -> int:
    """Rows of a row group to decode at once, so that memory stays bounded by `_BATCH_BYTES` and a page.

    A value is never longer than its page. Raises as `parquet_pages`.
    """
    rows = _BATCH_ROWS
    for chunk in chunks:
        if not any(chunk.path == name or chunk.path.startswith(f"{name}.") for name in names):
            continue
        whole, largest, shared = 0, 1, False
        for size, repeats in parquet_pages(source, chunk):
            whole, largest, shared = whole + size, max(largest, size), shared or repeats
        if shared or whole > _BATCH_BYTES:
            rows = min(rows, max(1, _BATCH_BYTES // largest))
    return rows


def _check_text_column(schema: pa.Schema, name: str) -> None:
    column = _column(schema, name)
    if column is None:
        raise UnfitRow(f"missing text: no column {name!r} (columns: {', '.join(schema.names)[:100]!a})")
    kind = schema.field(column).type
    for part in name.split(".")[1:] if column != name else ():
        names = [kind.field(index).name for index in range(kind.num_fields)]
        if part not in names:
            raise UnfitRow(f"missing text: no column {name!r} (in {column!r}: {', '.join(names)[:100]!a})")
        kind = kind.field(names.index(part)).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if kind not in _TEXTS:
        raise UnfitRow(f"text is not a string: column {name!r} is {kind}")


def _column(schema: pa.Schema, name: str) -> str | None:
    """The column that holds a field: of its name, or the one that the part before the first point names."""
    first = name.partition(".")[0]
    inner = first in schema.names and pa.types.is_struct(schema.field(first).type)
    return name if name in schema.names else first if inner else None


def wanted_columns(schema: pa.Schema, options: ReadOptions) -> list[str]:
    """The columns that hold what the options name, text first. Raises UnfitRow where there is no text."""
    _check_text_column(schema, options.text_field)
    fields = (options.text_field, options.id_field, *(name for name, _ in options.fields.values()))
    return list(dict.fromkeys(name for name in (_column(schema, field) for field in fields) if name is not None))


def batch_rows(file: InputFile, batch: pa.RecordBatch, first: int, options: ReadOptions) -> Iterator[Row]:
    """The rows of a batch, the first of them called `first`; a value of a dictionary is copied when it is read."""
    column = _column(batch.schema, options.text_field)
    size = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(batch.get_total_buffer_size(), 1)))
    for start in range(0, len(batch), size):
        part = batch.slice(start, size)
        values: Any = part.column(part.schema.get_field_index(column))
        for name in options.text_field.split(".")[1:] if column != options.text_field else ():
            values = values.flatten()[values.type.get_field_index(name)]  # null where the struct is
        others = part.select([name for name in part.schema.names if name != column])
        fields = others.to_pylist() if others.num_columns else [{} for _ in range(len(part))]
        for index, text in enumerate(values.cast(pa.large_binary())):
            yield _table_row(file, first + start + index, text.as_buffer(), fields[index], options)


def _table_row(file: InputFile, row: int, value: pa.Buffer | None, fields: dict[str, Any], options: ReadOptions) -> Row:
    if value is None:
        return reject(file, row, "text is not a string: it is null")
    if value.size > options.max_bytes:
        return too_long(file, row, value.size, options, value[:BEGINNING].to_pybytes())
    data = value.to_pybytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return reject(file, row, why_not_utf8(error), data)
    return fields_document(file, row, text, fields, options)
