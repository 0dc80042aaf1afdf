"""Files whose lines belong together, as translations are published: line n of `test.de` and line n of `test.en`.

Their endings are the fields that `text.labels` names, so a row is `{"de": ..., "en": ...}`. A source names the files of
the first field; the others lie beside them, compressed alike. Files of unequal numbers of lines are no rows at all:
every row behind the line that is missing would be a wrong one.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import chain

from hornbook.errors import UsageError
from hornbook.text.config.labels import LabelsConfig
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.charsets import UnfitRow, decode_utf8, plain_text
from hornbook.text.ingest.compressions import DamagedStream, Stream
from hornbook.text.ingest.document import ReadOptions, Row, reject, to_documents, whole_line
from hornbook.text.ingest.inputs import PARALLEL, InputFile, is_url, list_inputs
from hornbook.text.ingest.labels.rows import fields_of
from hornbook.text.ingest.lines import Line, open_input, read_lines


def stamped_inputs(source: str, config: SourceConfig, labels: LabelsConfig | None) -> list[InputFile]:
    """The files of a source (`list_inputs`); one with files beside it changes when any of them does.

    Raises UsageError, also where one of those is not there.
    """
    files = list_inputs(source, config, labelled=labels is not None)
    if config.layout != PARALLEL:
        return files
    if labels is None:
        raise UsageError(f'source {source!r}: layout "parallel" is of labelled sets: add a section [text.labels]')
    try:
        return [_with_others(file, list(fields_of(labels).values())) for file in files]
    except UnfitRow as error:
        raise UsageError(f"source {source!r}: {error}") from error


def _with_others(file: InputFile, fields: Sequence[str]) -> InputFile:
    stamps, paths = [file.stamp], _paths_beside(file, fields)
    for path in paths:
        if is_url(path):
            continue
        try:
            status = os.stat(path)
        except OSError as error:
            raise UnfitRow(f"{path} belongs beside {file.name} and cannot be read: {error.strerror}") from error
        stamps.append(f"{status.st_size}-{status.st_mtime_ns}")
    return replace(file, stamp=" ".join(stamps), beside=tuple(paths))


def _paths_beside(file: InputFile, fields: Sequence[str]) -> list[str]:
    """Paths of the files of the other fields. Raises UnfitRow where the file's own is not of the first."""
    if len(fields) < 2:
        raise UnfitRow("parallel files: text.labels names one field, and each is the ending of a file")
    stem, compressed = os.path.splitext(file.path) if file.compression else (file.path, "")
    if not stem.endswith(f".{fields[0]}"):
        raise UnfitRow(
            f"parallel files: {file.name} does not end in .{fields[0]}, the first field of text.labels: name the files "
            f"of that field alone; those of {', '.join(fields[1:])} are looked for beside them"
        )
    return [f"{stem.removesuffix(fields[0])}{field}{compressed}" for field in fields[1:]]


def read(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """The rows of a file of `list_labelled` and of those beside it. Raises UnfitRow, DamagedStream, OSError."""
    assert options.labels is not None
    fields = list(fields_of(options.labels).values())
    counts = {path: _count(replace(file, path=path), options) for path in (file.path, *file.beside)}
    if len(set(counts.values())) > 1:
        told = ", ".join(f"{os.path.basename(path)} has {count:,}" for path, count in counts.items())
        yield reject(file, 0, f"parallel files differ in lines: {told}", rows=max(counts.values()))
        return
    with ExitStack() as stack:
        others = [stack.enter_context(open_input(replace(file, path=path))) for path in file.beside]
        sides = [_lines(file, stream, options) for stream in (raw, *others)]
        for lines in zip(*sides, strict=True):
            try:
                yield from _documents(file, fields, lines, options)
            except UnfitRow as why:
                size = sum(line.size for line in lines)
                yield reject(file, lines[0].number, str(why), lines[0].data, size, damaged=not why.dropped)


def _documents(file: InputFile, fields: Sequence[str], lines: Sequence[Line], options: ReadOptions) -> Iterable[Row]:
    texts = (decode_utf8(whole_line(line, options), options.encoding).removesuffix("\r") for line in lines)
    return to_documents(file, lines[0].number, dict(zip(fields, texts, strict=True)), options)


def _count(file: InputFile, options: ReadOptions) -> int:
    """Lines of a file. UnfitRow, which names it, where it cannot be read."""
    try:
        with open_input(file) as raw:
            return sum(
                line.count
                for line in read_lines(plain_text(raw, file.compression, options.encoding), options.max_bytes)
            )
    except (DamagedStream, UnfitRow, OSError) as error:
        reason = f"cannot read: {error.strerror}" if isinstance(error, OSError) else str(error)
        raise UnfitRow(f"{os.path.basename(file.name)}: {reason}") from error


def _lines(file: InputFile, stream: Stream, options: ReadOptions) -> Iterator[Line]:
    """Each line, the empty ones too."""
    lines = read_lines(plain_text(stream, file.compression, options.encoding), options.max_bytes)
    return chain.from_iterable(_each(line) for line in lines)


def _each(line: Line) -> Iterator[Line]:
    return (replace(line, number=line.number + number, count=1) for number in range(line.count))
