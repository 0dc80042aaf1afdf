"""Rows of test sets: files whose items are looked for in training text, or asked of a model."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hornbook.errors import UsageError
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.compressions import DamagedStream, decompressed
from hornbook.text.ingest.inputs import InputFile, list_inputs
from hornbook.text.ingest.lines import HashingFile, open_input, read_lines

_LIMIT = 16 * 2**20
_BATCH_ROWS = 256


def read_rows(asker: str, paths: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """(FILE:ROW, row) of `.jsonl` and `.parquet`, or line of `.txt`, compressed or not; `asker` is for errors.

    Raises UsageError naming file and row where one cannot be read.
    """
    for file in list_inputs(asker, SourceConfig(paths=list(paths))):
        if file.problem:
            raise UsageError(f"test set {file.name}: {file.problem}")
        if file.format not in _READERS:
            raise UsageError(f"test set {file.name}: cannot read {file.format}; give .jsonl, .parquet or .txt")
        yield from ((f"{file.name}:{number}", row) for number, row in _rows(file))


def _rows(file: InputFile) -> Iterator[tuple[int, Any]]:
    try:
        yield from _READERS[file.format](file)
    except (DamagedStream, OSError, pa.ArrowException) as error:
        raise UsageError(f"test set {file.name} cannot be read: {error}") from error


def _lines(file: InputFile) -> Iterator[tuple[int, str]]:
    with open_input(file) as raw:
        for line in read_lines(decompressed(HashingFile(raw), file.compression), _LIMIT):
            if line.overlong:
                raise UsageError(f"test set {file.name}:{line.number}: longer than {_LIMIT} bytes")
            try:
                yield line.number, line.data.decode()
            except UnicodeDecodeError as error:
                raise UsageError(f"test set {file.name}:{line.number}: not UTF-8 ({error.reason})") from error


def _json_rows(file: InputFile) -> Iterator[tuple[int, Any]]:
    for number, line in _lines(file):
        if not line.strip():
            continue
        try:
            yield number, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"test set {file.name}:{number}: not JSON ({error})") from error


def _parquet_rows(file: InputFile) -> Iterator[tuple[int, Any]]:
    with open_input(file) as raw:
        batches = pq.ParquetFile(raw).iter_batches(batch_size=_BATCH_ROWS)
        yield from enumerate((row for batch in batches for row in batch.to_pylist()), 1)


_READERS = {"text": _lines, "jsonl": _json_rows, "parquet": _parquet_rows}
