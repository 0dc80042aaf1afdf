"""How files of a data folder are written: to a temporary name, synced, renamed; a small manifest says it is done."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Self

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from hornbook.durable import TEMPORARY, storage_error, sync_directory, write_atomic

_BLOCK = 1 << 20
_ROW_GROUP_BYTES = 8 * 2**20
_BATCH_ROWS = 256


@contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name only when the block ends well. Raises StorageError."""
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise storage_error(error, path) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


class TableWriter:
    """Parquet written row by row in row groups of about 8 MiB; the same rows give the same bytes."""

    def __init__(self, file: BinaryIO, schema: pa.Schema, compression: str = "zstd") -> None:
        self._schema = schema
        self._rows: list[tuple[Any, ...]] = []
        self._bytes = 0
        self._writer = pq.ParquetWriter(file, schema, compression=compression, write_statistics=False)

    def add(self, row: tuple[Any, ...], size: int) -> None:
        """Add one row, values in the order of the schema; `size` is its weight in bytes."""
        self._rows.append(row)
        self._bytes += size + 64
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
            self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._schema))
        self._rows, self._bytes = [], 0


def read_batches(path: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """Rows of a table written by `TableWriter`, at most one row group at a time, so memory stays bounded."""
    with pq.ParquetFile(path) as table:
        for group in range(table.num_row_groups):
            yield from table.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=columns)


def write_json(path: Path, data: Any) -> None:
    """Replace a JSON file as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(data, indent=1, ensure_ascii=True) + "\n")


def read_json(path: Path) -> Any:
    """A JSON file, or None where it is absent or torn."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


def digest_file(path: Path) -> str:
    """xxh3_128 of a file's bytes, as hex."""
    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def digest_of(value: Any) -> str:
    """xxh3_128 of a JSON value, as hex; keys are sorted first."""
    return xxhash.xxh3_128_hexdigest(json.dumps(value, sort_keys=True, ensure_ascii=True).encode())
