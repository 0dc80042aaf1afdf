"""Arrays and tables of a data folder, written as they grow and read in batches."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hornbook.files.durable import writing

Item = TypeVar("Item")
_ROW_GROUP_BYTES = 8 * 2**20
_BATCH_ROWS = 256
_NPY_HEADER = 4096


class ArrayWriter:
    """An .npy file that grows along its first axis; it appears under its name only when the block ends well."""

    def __init__(self, path: Path) -> None:
        self._path, self._stack = path, ExitStack()
        self._rows = 0
        self._like: np.ndarray | None = None

    def __enter__(self) -> Self:
        self._file = self._stack.enter_context(writing(self._path))
        self._file.write(b"\0" * _NPY_HEADER)
        return self

    def add(self, part: np.ndarray) -> None:
        """Append an array; all have one dtype and, but for the first axis, one shape."""
        self._like = part[:0] if self._like is None else self._like
        assert part.dtype == self._like.dtype
        assert part.shape[1:] == self._like.shape[1:]
        self._file.write(np.ascontiguousarray(part).data)
        self._rows += len(part)

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is None:
            like = np.zeros(0, np.uint8) if self._like is None else self._like
            self._file.seek(0)
            self._file.write(_npy_header(like, self._rows))
        self._stack.__exit__(kind, *rest)


def _npy_header(like: np.ndarray, rows: int) -> bytes:
    """The header of format version 1.0, padded so that its length does not depend on the number of rows."""
    fields = {"descr": np.lib.format.dtype_to_descr(like.dtype), "fortran_order": False}
    fields["shape"] = (rows, *like.shape[1:])
    text = repr(fields).encode()
    room = _NPY_HEADER - 10
    assert len(text) < room
    return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.ljust(room - 1) + b"\n"


class TableWriter:
    """Parquet written row by row in row groups of about 8 MiB; the same rows give the same bytes."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str = "zstd") -> None:
        self._schema = schema
        self._rows: list[tuple[Any, ...]] = []
        self._tables: list[pa.Table] = []
        self._bytes = 0
        self._writer = pq.ParquetWriter(file, schema, compression=compression, write_statistics=False)

    def add(self, row: tuple[Any, ...], size: int) -> None:
        """Add one row, values in the order of the schema; `size` is its weight in bytes."""
        self._rows.append(row)
        self._bytes += size + 64
        if self._bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def add_batch(self, table: pa.Table, size: int) -> None:
        """Add rows as columns of the schema; `size` is their weight in bytes. Not to be mixed with `add`."""
        self._tables.append(table)
        self._bytes += size + 64 * len(table)
        if self._bytes >= _ROW_GROUP_BYTES:
            self._flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Write what is left and the footer. After an error only close, while the file is still open."""
        if kind is None:
            self._flush()
            self._writer.close()
        else:
            with suppress(OSError):
                self._writer.close()

    def _flush(self) -> None:
        if self._rows:
            columns = zip(*self._rows, strict=True)
            arrays = [pa.array(column, type=field.type) for column, field in zip(columns, self._schema, strict=True)]
            self._tables.append(pa.Table.from_arrays(arrays, schema=self._schema))
        if self._tables:
            self._writer.write_table(pa.concat_tables(self._tables).combine_chunks())
        self._rows, self._tables, self._bytes = [], [], 0


def read_batches(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Rows of a table written by `TableWriter`, at most one row group at a time, so memory stays bounded."""
    with pq.ParquetFile(path) as table:
        for group in range(table.num_row_groups):
            yield from table.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=columns)


def read_rows(path: Path, columns: list[str]) -> Iterator[dict[str, Any]]:
    """Rows of a table, as `read_batches` reads them."""
    for batch in read_batches(path, columns):
        yield from batch.to_pylist()


def batched(
    items: Iterable[Item], size: Callable[[Item], int], least: int, most: int = sys.maxsize
) -> Iterator[list[Item]]:
    """Lists of items, each as short as reaches the size `least` in all, or `most` items; the last may be smaller."""
    batch: list[Item] = []
    filled = 0
    for item in items:
        batch.append(item)
        filled += size(item)
        if filled >= least or len(batch) == most:
            yield batch
            batch, filled = [], 0
    if batch:
        yield batch
