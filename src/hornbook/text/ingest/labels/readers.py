"""Readers of labelled sets: rows of `.jsonl`, `.parquet`, `.csv`, `.tsv`, `.json` (SQuAD's too), sentences of `.conll`.

As with plain text, no row is lost: what cannot be learned from is yielded as `Rejected`, with file, line and reason.
"""

import glob
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from hornbook.errors import UsageError
from hornbook.text.config.labels import LabelsConfig, SpanLabels, TagLabels
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.charsets import plain_text, why_not_utf8
from hornbook.text.ingest.compressions import DamagedStream
from hornbook.text.ingest.document import (
    DAMAGE,
    Document,
    Reader,
    ReadOptions,
    Rejected,
    Row,
    bad_line,
    identifier,
    short,
)
from hornbook.text.ingest.formats.tables.cells import read_table
from hornbook.text.ingest.formats.tables.columns import Excess, InPieces, rows_at_once
from hornbook.text.ingest.formats.tables.page_sizes import parquet_chunks
from hornbook.text.ingest.inputs import InputFile, is_url, list_inputs
from hornbook.text.ingest.labels.rows import UnfitRow, fields_of, label_rows
from hornbook.text.ingest.lines import HashingFile, Line, open_input, read_lines
from hornbook.text.ingest.readers import json_object, read_file

FORMATS = {".tsv": "tsv", ".json": "json", ".conll": "conll"}
"""Endings that only labelled sets have; such files are named (globs may do it), not looked for in folders."""
MOST_JSON = 2**30
"""Bytes of a `.json` file, which is held as a whole."""
_BATCH_ROWS = 256


def list_labelled(source: str, config: SourceConfig) -> list[InputFile]:
    """As `list_inputs`, and files of the formats that only labelled sets have."""
    ours = [path for path in config.paths if not is_url(path) and Path(path).suffix.lower() in FORMATS]
    others = [path for path in config.paths if path not in ours]
    files = list_inputs(source, config.model_copy(update={"paths": others})) if others else []
    for path in ours:
        names = sorted(glob.glob(os.path.expanduser(path), recursive=True)) or [os.path.expanduser(path)]
        files += [_named_file(source, name) for name in names]
    return sorted({file.path: file for file in files}.values(), key=lambda file: file.path)


def _named_file(source: str, path: str) -> InputFile:
    try:
        status = os.stat(path)
    except OSError as error:
        raise UsageError(f"source {source!r}: cannot read {path}: {error.strerror}") from error
    if not os.path.isfile(path):
        raise UsageError(f"source {source!r}: {path} is not a regular file")
    stamp = f"{status.st_size}-{status.st_mtime_ns}"
    return InputFile(source, path, status.st_size, stamp, FORMATS[Path(path).suffix.lower()], None)


def read_labelled(
    file: InputFile, options: ReadOptions, on_digest: Callable[[str], None] | None = None
) -> Iterator[Row]:
    """As `read_file`, where each row has labels as `options.labels` says."""
    return read_file(file, options, on_digest, _READERS)


def _labels(options: ReadOptions) -> LabelsConfig:
    assert options.labels is not None
    return options.labels


def _documents(file: InputFile, number: int, row: Mapping[str, Any], options: ReadOptions) -> Iterator[Row]:
    """What a row holds with its labels, or why there is nothing."""
    origin = f"{file.name}:{number}"
    try:
        labelled = label_rows(_labels(options), row, identifier(row.get(options.id_field), origin), origin)
    except UnfitRow as error:
        yield Rejected(file.name, number, str(error), file.source, ascii(dict(row))[:160])
        return
    for name, text, labels in labelled:
        size = len(text.encode())
        if size > options.max_bytes:
            reason = f"row longer than the limit: {size} bytes, max_document_bytes is {options.max_bytes}"
            yield Rejected(file.name, number, reason, file.source, ascii(text)[:160], size)
        else:
            yield Document(text, name, file.source, dict(row), origin, labels)


def _lines(
    file: InputFile, raw: HashingFile, options: ReadOptions, read: Callable[[Line], Iterable[Row]]
) -> Iterator[Row]:
    """What `read` makes of each line that is sound."""
    number = 0
    try:
        for line in read_lines(plain_text(raw, file.compression), options.max_bytes):
            number = line.number
            yield from read(line)
    except DamagedStream as error:
        yield Rejected(file.name, number + 1, str(error), file.source)


def _read_jsonl(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    def read(line: Line) -> Iterable[Row]:
        row = json_object(file, line, options)
        return [row] if isinstance(row, Rejected) else _documents(file, line.number, row, options)

    return _lines(file, raw, options, read)


def _read_table(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """Rows of `.csv` and `.tsv`, whose columns the first line names."""

    def make(number: int, row: Mapping[str, str], data: bytes) -> Iterable[Row]:
        del data
        return _documents(file, number, row, options)

    return read_table(file, raw, options, fields_of(_labels(options)), make)


def _decoded(file: InputFile, line: Line, options: ReadOptions) -> str | Rejected:
    if line.overlong:
        reason = f"row longer than the limit: {line.size} bytes, max_document_bytes is {options.max_bytes}"
        return bad_line(file, line, reason)
    try:
        return line.data.decode().removesuffix("\r")
    except UnicodeDecodeError as error:
        return bad_line(file, line, why_not_utf8(line.data, error))


def _read_conll(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """A word a line, its tag in the last column; a blank line ends a sentence (CoNLL 2003)."""
    config = _labels(options)
    if not isinstance(config, TagLabels):
        yield Rejected(file.name, 0, f"words with tags: text.labels.kind is {config.kind}", file.source)
        return
    words: list[str] = []
    tags: list[str] = []
    first = 0
    problem: Row | None = None

    def sentence() -> list[Row]:
        nonlocal problem
        rows = [] if problem is None else [problem]
        if words and problem is None:
            rows = list(_documents(file, first, {config.words: [*words], config.tags: [*tags]}, options))
        words.clear()
        tags.clear()
        problem = None
        return rows

    def read(line: Line) -> Iterable[Row]:
        nonlocal first, problem
        text = _decoded(file, line, options)
        if isinstance(text, str) and (not text.strip() or text.startswith("-DOCSTART-")):
            return sentence()
        first = first if words or problem else line.number
        columns = text.split() if isinstance(text, str) else []
        if isinstance(text, Rejected) or len(columns) < 2:
            problem = problem or (text if isinstance(text, Rejected) else bad_line(file, line, "a word without a tag"))
            return []
        words.append(columns[0])
        tags.append(columns[-1])
        return []

    yield from _lines(file, raw, options, read)
    yield from sentence()


def _read_json(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """A list of rows, or SQuAD's articles of paragraphs of questions."""
    if file.size > MOST_JSON:
        reason = f"row longer than the limit: {file.size} bytes of one JSON value, {MOST_JSON} are read; use .jsonl"
        yield Rejected(file.name, 0, reason, file.source, "", file.size)
        return
    try:
        data = json.loads(raw.read().decode("utf-8-sig"))
        rows = _rows(data, _labels(options), options.id_field)
    except (ValueError, RecursionError) as error:
        yield Rejected(file.name, 0, f"invalid JSON: {short(error)}", file.source)
    except (KeyError, TypeError) as error:
        yield Rejected(file.name, 0, f"neither rows nor SQuAD's layout: {short(error)}", file.source)
    else:
        for number, row in enumerate(rows, 1):
            if isinstance(row, Mapping):
                yield from _documents(file, number, row, options)
            else:
                yield Rejected(file.name, number, f"not an object: {ascii(row)[:60]}", file.source)


def _rows(data: Any, config: LabelsConfig, id_field: str) -> list[Any]:
    if isinstance(data, list) or not isinstance(config, SpanLabels):
        return data if isinstance(data, list) else data["data"]
    return [
        {
            id_field: question.get("id"),
            config.question: question["question"],
            config.context: paragraph["context"],
            config.answers: question["answers"],
        }
        for article in data["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def _read_parquet(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """Row group by row group; a damaged one is one `Rejected` that counts all of its rows."""
    del raw  # parquet is read at random places
    with open_input(file) as handle:
        try:
            source = InPieces(handle)
            table = pq.ParquetFile(pa.PythonFile(source, mode="r"), pre_buffer=False)
            columns, rows = table.schema_arrow.names, table.metadata.num_rows
            chunks = parquet_chunks(source)
        except DAMAGE as error:
            yield Rejected(file.name, 0, f"damaged parquet: {short(error)}", file.source)
            return
        for key, name in fields_of(_labels(options)).items():
            if name not in columns:
                reason = f"missing {key}: no column {name!r} (columns: {ascii(', '.join(columns))[:100]})"
                yield Rejected(file.name, 0, reason, file.source, rows=max(rows, 1))
                return
        done = 0
        for group in range(min(table.num_row_groups, len(chunks))):
            end = done + table.metadata.row_group(group).num_rows
            try:
                size = min(_BATCH_ROWS, rows_at_once(source, chunks[group], columns))
                for batch in table.iter_batches(batch_size=size, row_groups=[group]):
                    for row in batch.to_pylist():
                        done += 1
                        yield from _documents(file, done, row, options)
            except (*DAMAGE, Excess) as error:
                kind = "parquet bomb" if isinstance(error, Excess) else "damaged parquet"
                reason = f"{kind}: row group {group}, {short(error)}"
                yield Rejected(file.name, done + 1, reason, file.source, rows=end - done)
            done = end


def _read_text(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    del raw, options
    endings = ".jsonl (also .gz, .zst) .parquet .csv .tsv .json .conll"
    yield Rejected(file.name, 0, f"no labels in plain text: labelled sets are {endings}", file.source)


_READERS: dict[str, Reader] = {
    "jsonl": _read_jsonl,
    "parquet": _read_parquet,
    "csv": _read_table,
    "tsv": _read_table,
    "json": _read_json,
    "conll": _read_conll,
    "text": _read_text,
}
