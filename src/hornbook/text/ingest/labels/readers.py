"""Readers of labelled sets: rows of `.jsonl`, `.parquet`, `.csv`, `.tsv`, `.json` (SQuAD's too), sentences of `.conll`.

As with plain text, no row is lost: what cannot be learned from is yielded as `Rejected`, with file, line and reason.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from hornbook.text.config.labels import LabelsConfig, SpanLabels, TagLabels
from hornbook.text.ingest.charsets import UnfitRow, decode_utf8, plain_text
from hornbook.text.ingest.compressions import Stream
from hornbook.text.ingest.document import Reader, ReadOptions, Row, read_each, reject, short, to_documents, whole_line
from hornbook.text.ingest.fields import missing_column
from hornbook.text.ingest.formats.tables import cells, json_rows
from hornbook.text.ingest.formats.tables.columns import read_row_groups
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.labels import parallel
from hornbook.text.ingest.labels.rows import fields_of
from hornbook.text.ingest.lines import Line, read_lines, read_whole

MOST_JSON = 2**30
"""Bytes of a `.json` file, which is held as a whole."""


def read(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """The rows of a file, each with labels as `options.labels` says. Raises UnfitRow for other formats."""
    if file.format in _READERS:
        return _READERS[file.format](file, raw, options)
    text = "plain text: labelled sets are .jsonl (also .gz, .zst) .parquet .csv .tsv .json .conll"
    raise UnfitRow(f"no labels in {text if file.format == 'text' else f'this format: {file.format}'}")


def _labels(options: ReadOptions) -> LabelsConfig:
    assert options.labels is not None
    return options.labels


def _read_conll(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """A word a line, its tag in the last column; a blank line ends a sentence (CoNLL 2003)."""
    config = _labels(options)
    if not isinstance(config, TagLabels):
        raise UnfitRow(f"words with tags: text.labels.kind is {config.kind}")
    words: list[str] = []
    tags: list[str] = []
    first = 0
    problem: Row | None = None

    def sentence() -> list[Row]:
        nonlocal problem
        rows = [] if problem is None else [problem]
        if words and problem is None:
            rows = list(to_documents(file, first, {config.words: [*words], config.tags: [*tags]}, options))
        words.clear()
        tags.clear()
        problem = None
        return rows

    def read(line: Line) -> Iterable[Row]:
        nonlocal first, problem
        try:
            text = decode_utf8(whole_line(line, options), options.encoding)
            columns = text.split()
            if not columns or text.startswith("-DOCSTART-"):
                return sentence()
            if len(columns) < 2:
                raise UnfitRow("a word without a tag")
        except UnfitRow as why:
            problem = problem or reject(file, line.number, str(why), line.data, line.size)
            return []
        first = first if words else line.number
        words.append(columns[0])
        tags.append(columns[-1])
        return []

    yield from read_each(file, read_lines(plain_text(raw, file.compression, options.encoding), options.max_bytes), read)
    yield from sentence()


def _read_json(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """A list of rows, or SQuAD's articles of paragraphs of questions."""
    if file.size > MOST_JSON:
        reason = f"row longer than the limit: {file.size} bytes of one JSON value, {MOST_JSON} are read; use .jsonl"
        yield reject(file, 0, reason, b"", file.size)
        return
    text = plain_text(raw, file.compression, options.encoding)
    try:
        data = json.loads((read_whole(text, MOST_JSON)[0] or b"").decode("utf-8-sig"))
        rows = _rows(data, _labels(options), options.id_field)
    except (ValueError, RecursionError) as error:
        yield reject(file, 0, f"invalid JSON: {short(error)}")
    except (KeyError, TypeError) as error:
        yield reject(file, 0, f"neither rows nor SQuAD's layout: {short(error)}")
    else:
        for number, row in enumerate(rows, 1):
            if isinstance(row, dict):
                yield from to_documents(file, number, row, options)
            else:
                yield reject(file, number, f"not an object: {ascii(row)[:60]}")


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


def _read_parquet(file: InputFile, _: Stream, options: ReadOptions) -> Iterator[Row]:
    def columns(schema: pa.Schema) -> list[str]:
        if problem := missing_column(schema.names, fields_of(_labels(options))):
            raise UnfitRow(problem)
        return schema.names

    def read(batch: pa.RecordBatch, first: int) -> Iterator[Iterable[Row]]:
        return (to_documents(file, number, row, options) for number, row in enumerate(batch.to_pylist(), first))

    return read_row_groups(file, columns, read)


_READERS: dict[str, Reader] = {
    "jsonl": json_rows.read_jsonl,
    "parquet": _read_parquet,
    "csv": cells.read,
    "tsv": cells.read,
    "json": _read_json,
    "conll": _read_conll,
    "parallel": parallel.read,
}
