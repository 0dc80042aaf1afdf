"""Items of test sets: the text of each row or line of their files."""

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


def read_items(paths: Sequence[str], fields: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(FILE:ROW, text) of every item. Raises UsageError naming file and row where one cannot be read."""
    for file in list_inputs("decontaminate", SourceConfig(paths=list(paths))):
        if file.problem:
            raise UsageError(f"test set {file.name}: {file.problem}")
        if file.format not in _READERS:
            raise UsageError(f"test set {file.name}: cannot read {file.format}; give .jsonl, .parquet or .txt")
        for number, row in _rows(file):
            name = f"{file.name}:{number}"
            text = row if isinstance(row, str) else "\n".join(_texts(_chosen(row, fields, name)))
            if text.strip():
                yield name, text


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
    number = 0
    with open_input(file) as raw:
        for batch in pq.ParquetFile(raw).iter_batches(batch_size=_BATCH_ROWS):
            for row in batch.to_pylist():
                number += 1
                yield number, row


_READERS = {"text": _lines, "jsonl": _json_rows, "parquet": _parquet_rows}


def _chosen(row: Any, fields: Sequence[str], name: str) -> Any:
    if not fields:
        return row
    missing = [field for field in fields if not isinstance(row, dict) or field not in row]
    if missing:
        keys = ", ".join(row)[:100] if isinstance(row, dict) else "none: it is no object"
        raise UsageError(f"test set {name}: no key {missing[0]!r} (keys: {keys}); see fields of decontaminate")
    return [row[field] for field in fields]


def _texts(value: Any) -> Iterator[str]:
    """All strings within a value, in its order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
