"""Tables of columns: parquet by row groups, Arrow by batches; a row of either becomes a document.

`datasets.save_to_disk` writes Arrow streams of the stored rows in order, so its folders are read as they are. An Arrow
file is read as the stream in it: its footer only repeats where the batches are.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import Any

import pyarrow as pa

from hornbook.text.ingest.charsets import UnfitRow, why_not_utf8
from hornbook.text.ingest.compressions import Stream
from hornbook.text.ingest.document import DAMAGE, ReadOptions, Row, fields_document, reject, short, too_long
from hornbook.text.ingest.formats.tables.decoder import Table, Undecoded
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import BEGINNING, open_input

_BATCH_ROWS, _BATCH_BYTES = 256, 2**26
"""Most rows that are copied at once, and the most bytes that they may take."""
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
    with open_input(file) as handle, closing(Table(handle, "parquet")) as table:
        rows = 1
        try:
            table.open()
            rows = table.rows
            names = columns(table.schema)
        except UnfitRow as why:
            if not part:  # the first part says so for all
                yield reject(file, 0, str(why), size=file.size, rows=max(rows, 1))
            return
        except DAMAGE as error:
            yield reject(file, 0, f"damaged parquet: {short(error)}", size=file.size, rows=max(rows, 1))
            return
        groups, first = len(table.groups), 1
        ours = range(groups * part // parts, groups * (part + 1) // parts)
        for group, size in enumerate(table.groups):  # of all parts, since `first` is the group's first row in the file
            if group in ours:
                yield from _read_group(file, group, first, size, table.batches(group, names), read)
            first += size
        if first - 1 != rows and not part:
            yield reject(file, 0, f"damaged parquet: the footer counts {rows} rows, its row groups {first - 1}")


def _read_group(
    file: InputFile, group: int, first: int, rows: int, batches: Iterator[pa.RecordBatch | Undecoded], read: Read
) -> Iterator[Row]:
    """Row group number `group`, which has rows first..first + rows - 1 of the file."""
    done = 0
    problem = f"damaged parquet: row group {group}, it ends early"
    try:
        for batch in batches:
            if isinstance(batch, Undecoded):
                kind = "parquet bomb" if batch.is_bomb else "damaged parquet"
                problem = f"{kind}: row group {group}, {batch.reason}"
                break
            for rows_of_one in read(batch, first + done):
                yield from rows_of_one
                done += 1
    except DAMAGE as error:
        problem = f"damaged parquet: row group {group}, {short(error)}"
    if done < rows:
        yield reject(file, first + done, problem, rows=rows - done)


def read_arrow(file: InputFile, _: Stream, options: ReadOptions) -> Iterator[Row]:
    """An Arrow stream, or an Arrow file; a damaged batch is one `Rejected` that counts all of its rows."""
    with open_input(file) as handle, closing(Table(handle, "arrow")) as table:
        try:
            table.open()
            names = wanted_columns(table.schema, options)
        except UnfitRow as why:
            rows = sum(batch.rows if isinstance(batch, Undecoded) else len(batch) for batch in table.batches(0, []))
            yield reject(file, 0, str(why), size=file.size, rows=max(1, rows))
            return
        except DAMAGE as error:
            raise UnfitRow(f"damaged arrow: {short(error)}") from error
        first = 1
        for batch in table.batches(0, names):
            if isinstance(batch, Undecoded):
                kind, size = "arrow bomb" if batch.is_bomb else "damaged arrow", max(1, batch.rows)
                yield reject(file, first, f"{kind}: {batch.reason}", rows=size)
            else:
                size = len(batch)
                yield from _arrow_rows(file, batch, first, options)
            first += size


def _arrow_rows(file: InputFile, batch: pa.RecordBatch, first: int, options: ReadOptions) -> Iterator[Row]:
    done = 0
    try:
        for row in batch_rows(file, batch, first, options):
            done += 1
            yield row
    except DAMAGE as error:
        yield reject(file, first + done, f"damaged arrow: {short(error)}", rows=len(batch) - done)


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
    try:
        text = str(value, "utf-8")
    except UnicodeDecodeError as error:
        return reject(file, row, why_not_utf8(error), value.to_pybytes())
    return fields_document(file, row, text, fields, options)
