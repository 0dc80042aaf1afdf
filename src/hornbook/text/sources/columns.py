"""Tables: parquet, and Arrow as Hugging Face datasets keep it on disk, batch by batch.

`datasets.save_to_disk` writes Arrow streams of the stored rows in order, so pyarrow reads its folders as they are.
"""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hornbook.text.document import Document, Rejected, excerpt
from hornbook.text.inputs import InputFile
from hornbook.text.lines import HashingFile, open_input, why_not_utf8
from hornbook.text.rows import DAMAGE, ReadOptions, Row, identifier, lookup, short, too_long

_BATCH_ROWS = 256


def read_parquet(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """Row group by row group (those of its part); a damaged one is one `Rejected` that counts all of its rows."""
    del raw  # parquet is read at random places
    with open_input(file) as handle:
        try:
            table = pq.ParquetFile(pa.PythonFile(handle, mode="r"), pre_buffer=False)
            rows = table.metadata.num_rows
            problem = _column_problem(table.schema_arrow, options.text_field)
        except DAMAGE as error:
            yield Rejected(file.name, 0, f"damaged parquet: {short(error)}", file.source)
            return
        part, parts = file.part
        if problem:
            if not part:  # the first part says so for all
                yield Rejected(file.name, 0, problem, file.source, rows=max(rows, 1))
            return
        groups, first = table.num_row_groups, 1
        ours = range(groups * part // parts, groups * (part + 1) // parts)
        for group in range(groups):
            if group in ours:
                yield from _read_group(file, table, group, first, options)
            first += table.metadata.row_group(group).num_rows
        if first - 1 != rows and not part:
            reason = f"damaged parquet: the footer counts {rows} rows, its row groups {first - 1}"
            yield Rejected(file.name, 0, reason, file.source)


def _read_group(file: InputFile, table: pq.ParquetFile, group: int, first: int, options: ReadOptions) -> Iterator[Row]:
    names = _wanted(table.schema_arrow, options)
    rows, done = table.metadata.row_group(group).num_rows, 0
    try:
        for batch in table.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=names):
            for row in _batch_rows(file, batch, first + done, options):
                yield row
                done += 1
        problem = "it ends early"
    except DAMAGE as error:
        problem = short(error)
    if done < rows:
        reason = f"damaged parquet: row group {group}, {problem}"
        yield Rejected(file.name, first + done, reason, file.source, rows=rows - done)


def read_arrow(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """An Arrow stream, or an Arrow file; at damage the batches before it are kept."""
    del raw
    done = 0
    with open_input(file) as handle:
        try:
            magic = handle.read(6)
            handle.seek(0)
            source = pa.PythonFile(handle, mode="r")
            whole = magic == b"ARROW1"
            table = pa.ipc.open_file(source) if whole else pa.ipc.open_stream(source)
            problem = _column_problem(table.schema, options.text_field)
            if problem:
                yield Rejected(file.name, 0, problem, file.source)
                return
            names = _wanted(table.schema, options)
            for batch in map(table.get_batch, range(table.num_record_batches)) if whole else table:
                batch.validate(full=True)
                for start in range(0, len(batch), _BATCH_ROWS):
                    part = batch.slice(start, _BATCH_ROWS).select(names)
                    for row in _batch_rows(file, part, done + 1, options):
                        done += 1
                        yield row
        except DAMAGE as error:
            yield Rejected(file.name, done + 1, f"damaged arrow: {short(error)}", file.source)


def _column_problem(schema: pa.Schema, name: str) -> str:
    column = _column(schema, name)
    if column is None:
        return f"missing text: no column {name!r} (columns: {', '.join(schema.names)[:100]!a})"
    kind = schema.field(column).type
    for part in name.split(".")[1:] if column != name else ():
        names = [kind.field(place).name for place in range(kind.num_fields)]
        if part not in names:
            return f"missing text: no column {name!r} (in {column!r}: {', '.join(names)[:100]!a})"
        kind = kind.field(names.index(part)).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    binary = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)
    return "" if any(test(kind) for test in (*tests, *binary)) else f"text is not a string: column {name!r} is {kind}"


def _column(schema: pa.Schema, name: str) -> str | None:
    """The column that holds a field: of its name, or the one that the part before the first point names."""
    first = name.partition(".")[0]
    inner = first in schema.names and pa.types.is_struct(schema.field(first).type)
    return name if name in schema.names else first if inner else None


def _wanted(schema: pa.Schema, options: ReadOptions) -> list[str]:
    """The columns that hold what the options name, text first."""
    fields = (options.text_field, options.id_field, *(name for name, _ in options.fields.values()))
    return list(dict.fromkeys(name for name in (_column(schema, field) for field in fields) if name is not None))


def _batch_rows(file: InputFile, batch: pa.RecordBatch, first: int, options: ReadOptions) -> Iterator[Row]:
    column = _column(batch.schema, options.text_field)
    values: Any = batch.column(batch.schema.get_field_index(column))
    for part in options.text_field.split(".")[1:] if column != options.text_field else ():
        values = values.field(part)
    others = batch.select([name for name in batch.schema.names if name != column])
    fields = others.to_pylist() if others.num_columns else [{} for _ in range(len(batch))]
    for place, text in enumerate(values.cast(pa.large_binary())):
        yield _table_row(file, first + place, text.as_py(), fields[place], options)


def _table_row(file: InputFile, row: int, data: bytes | None, fields: dict[str, Any], options: ReadOptions) -> Row:
    if data is None:
        return Rejected(file.name, row, "text is not a string: it is null", file.source)
    if len(data) > options.max_bytes:
        return too_long(file, row, len(data), options, data)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return Rejected(file.name, row, why_not_utf8(data, error), file.source, excerpt(data), len(data))
    origin = f"{file.name}:{row}"
    name = identifier(lookup(fields, options.id_field), origin)
    fields.pop(options.id_field, None)
    return Document(text, name, file.source, fields, origin)
