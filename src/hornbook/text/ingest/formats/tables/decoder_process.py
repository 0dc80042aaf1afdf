"""A process that decodes tables of columns for `decoder`.

Its memory is limited, so a hostile table ends in an error. It has no file open: its parent reads for it. Each side
sends lines of JSON; bytes that were asked for follow a request to read, and a message of an Arrow stream follows each
batch. Started by its path, so it imports nothing of hornbook.
"""

import json
import resource
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

_ROWS, _FEWER = 256, 8
"""Rows of parquet that are decoded at once, and the factor by which they become fewer where memory is too small."""
_BATCH_BYTES = 2**26
"""Most bytes of rows that are sent at once, unless one row has more."""
_READ_BYTES = 2**20
_MAGIC = b"ARROW1\0\0"
_FAILURES = (OSError, pa.ArrowException, ValueError, KeyError, OverflowError, MemoryError)
_OPTIONS = pa.ipc.IpcReadOptions(use_threads=False)


def _send(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
    sys.stdout.buffer.flush()


class _Source:
    """The parent's file."""

    closed = False

    def __init__(self, size: int) -> None:
        self._size, self._position = size, 0

    def read(self, size: int = -1, /) -> bytes:
        """At most `size` bytes, all that remain where it is negative; no more memory than the file has bytes."""
        remaining = max(0, self._size - self._position)
        size = remaining if size < 0 else min(size, remaining)
        if not size:
            return b""
        _send({"read": [self._position, size]})
        self._position += size
        data = sys.stdin.buffer.read(size)
        if len(data) < size:
            sys.exit()
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._position = offset + (0, self._position, self._size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        """Nothing: the file is the parent's."""


def _limit_memory(more: int) -> None:
    """Let this process take `more` bytes than now. Where the system does not count them (macOS), nothing is limited."""
    try:
        with open("/proc/self/statm", encoding="ascii") as statistics:
            now = int(statistics.read().split()[0]) * resource.getpagesize()
    except OSError:
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = now + more if hard == resource.RLIM_INFINITY else min(now + more, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


class _Parquet:
    def __init__(self, source: _Source) -> None:
        file = pa.PythonFile(source, mode="r")
        self._table = pq.ParquetFile(file, pre_buffer=False, buffer_size=_READ_BYTES)
        metadata = self._table.metadata
        self.schema, self.rows = self._table.schema_arrow, metadata.num_rows
        self.groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]

    def batches(self, group: int, names: list[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a row group. Where many rows share a long value, fewer are decoded at once."""
        done, rows = 0, _ROWS
        while True:
            passed = 0
            try:
                for batch in self._table.iter_batches(rows, [group], names, use_threads=False):
                    yield batch.slice(max(0, done - passed))
                    passed += len(batch)
                    done = max(done, passed)
                return
            except MemoryError:
                if rows == 1:
                    raise
                rows = max(1, rows // _FEWER)


class _Arrow:
    rows, groups = 0, ()

    def __init__(self, source: _Source) -> None:
        source.seek(len(_MAGIC) if source.read(len(_MAGIC)) == _MAGIC else 0)
        self._source = source
        self._table = pa.ipc.open_stream(pa.PythonFile(source, mode="r"), options=_OPTIONS)
        self.schema = self._table.schema

    def batches(self, _: int, names: list[str]) -> Iterator[pa.RecordBatch]:
        """The batches of the stream. One that cannot be decoded is reported, and the next ones are read."""
        while True:
            start = self._source.tell()
            try:
                batch = self._table.read_next_batch()
                batch.validate(full=True)
            except StopIteration:
                return
            except _FAILURES as error:
                self._source.seek(start)
                rows = self._rows_ahead()
                _report(error, max(rows, 1))
                if not rows:
                    return
            else:
                yield batch.select(names)

    def _rows_ahead(self) -> int:
        """Rows of the next batch, read without its columns; 0 where it has none, or cannot be read."""
        messages = pa.ipc.MessageReader.open_stream(pa.PythonFile(self._source, mode="r"))
        try:
            while (message := messages.read_next_message()).type != "record batch":
                pass
            return pa.ipc.read_record_batch(message, pa.schema([])).num_rows
        except (StopIteration, *_FAILURES):
            return 0


def _report(error: Exception, rows: int = 0) -> None:
    _send({"error": str(error) or type(error).__name__, "bomb": isinstance(error, MemoryError), "rows": rows})


def _send_batch(stream: pa.RecordBatchStreamWriter, batch: pa.RecordBatch) -> None:
    half = len(batch) // 2
    if half and batch.nbytes > _BATCH_BYTES:
        _send_batch(stream, batch.slice(0, half))
        _send_batch(stream, batch.slice(half))
    elif len(batch):
        _send({"batch": len(batch)})
        stream.write_batch(batch)
        sys.stdout.buffer.flush()


def _send_group(table: _Parquet | _Arrow, group: int, names: list[str]) -> None:
    stream = None
    for batch in table.batches(group, names):
        stream = stream or pa.ipc.new_stream(sys.stdout.buffer, batch.schema)
        _send_batch(stream, batch)


def main() -> None:
    """Do what the parent asks, until it closes the pipe."""
    table = None
    for line in iter(sys.stdin.buffer.readline, b""):
        request = json.loads(line)
        _limit_memory(request["memory"])
        try:
            if "open" in request:
                table = {"parquet": _Parquet, "arrow": _Arrow}[request["open"]](_Source(request["size"]))
                schema = table.schema.serialize().to_pybytes().hex()
                _send({"schema": schema, "rows": table.rows, "groups": table.groups})
            else:
                assert table is not None
                _send_group(table, request["group"], request["names"])
        except _FAILURES as error:
            _report(error)
        _send({"end": True})
        pa.default_memory_pool().release_unused()


if __name__ == "__main__":
    main()
