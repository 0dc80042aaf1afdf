"""Phase 1 of prepare, one task: read the inputs, edit each text, measure its columns, keep all of it on disk."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from json import dumps
from typing import Any, BinaryIO

import pyarrow as pa
import xxhash

from hornbook.errors import IntegrityError
from hornbook.files.artifact import once
from hornbook.files.durable import writing
from hornbook.text.ingest.document import Document, Rejected
from hornbook.text.ingest.labels.labelling import edited
from hornbook.text.ingest.parts import numbered
from hornbook.text.ingest.readers import read_file
from hornbook.text.refinery.pipeline.plan import FIELDS, Measured, MeasureTask, schema_of
from hornbook.text.refinery.step import Edit, Steps, build
from hornbook.text.store import ArrayWriter, TableWriter, batched

_BATCH_BYTES, _BATCH_ROWS = 4 * 2**20, 1024
"""Size of the batches in which documents are measured; no result depends on it."""


@dataclass(frozen=True, slots=True)
class Edited:
    """A document after the edits."""

    document: Document
    row: int
    """Index among all rows of the task, including those that are no documents."""
    data: bytes
    """Its text in UTF-8."""
    bytes_read: int
    counts: tuple[int, ...]
    """Values of all counters of all edits."""
    edited_out: int
    """k where the k-th edit dropped it, else 0."""


def measure(task: MeasureTask) -> Measured:
    """Run the task unless an earlier run did. Raises IntegrityError at the first damaged row if `strict`."""
    result = Measured(**once(task, lambda: asdict(_measure(task)), lambda _: task.table.exists()))
    if task.strict and result.damage:
        raise _strict_error(result.damage)
    return result


def _strict_error(damage: str) -> IntegrityError:
    return IntegrityError(f"{damage}; mend the row, or run without --strict to count it in quarantine and go on")


def _measure(task: MeasureTask) -> Measured:
    result, steps = Measured(), build(task.steps)
    with ExitStack() as stack:
        quarantine = stack.enter_context(writing(task.quarantine))
        file = stack.enter_context(writing(task.table))
        table = stack.enter_context(TableWriter(file, schema_of(steps.columns()), compression="lz4"))
        sketches = [stack.enter_context(ArrayWriter(task.sketch(step.name))) for step in steps.sketched]
        rows = _documents(task, result, steps.edits, quarantine)
        for batch in batched(rows, lambda each: len(each.data), _BATCH_BYTES, _BATCH_ROWS):
            documents = [each.document for each in batch]
            table.add_batch(_table(batch, documents, steps), sum(len(each.data) for each in batch))
            for sketch, step in zip(sketches, steps.sketched, strict=True):
                sketch.add(step.sketch(documents, result.documents))
            result.documents += len(batch)
    return result


def _documents(task: MeasureTask, result: Measured, edits: list[Edit], quarantine: BinaryIO) -> Iterator[Edited]:
    """All documents of the task, edited; rows that are no documents are counted."""
    for row in _rows(task, result):
        if isinstance(row, Rejected):
            _note(task, result, row)
            if row.damaged:
                quarantine.write(dumps(_quarantine_record(row)).encode() + b"\n")
            continue
        yield edit_document(row, result.rows, edits)
        result.rows += 1


def edit_document(document: Document, row: int, edits: list[Edit]) -> Edited:
    """Apply the edits in their order, up to one that drops the document."""
    read, counts, out = document.text, [], 0
    for number, step in enumerate(edits, start=1):
        if out:
            counts += [0] * len(step.counters)
            continue
        text, changed = step.edit(document)
        counts += changed
        if text is None:
            out = number
        elif text is not document.text:
            document = _with_text(document, text, step)
    data = document.text.encode()
    size = len(data) if document.text is read else len(read.encode())
    return Edited(document, row, data, size, tuple(counts), out)


def _with_text(document: Document, text: str, step: Edit) -> Document:
    """The document with its edited text; each labelled part is edited on its own, so that labels stay in place."""
    if document.labels is None:
        return replace(document, text=text)
    text, labels = edited(
        document.text, document.labels, lambda piece: step.edit(replace(document, text=piece))[0] or ""
    )
    return replace(document, text=text, labels=labels)


def _table(batch: list[Edited], documents: Sequence[Document], steps: Steps) -> pa.Table:
    base = [
        [each.data for each in batch],
        [document.id for document in documents],
        [document.origin for document in documents],
        *(
            [None if (value := each.metadata.get(name)) is None else str(value) for each in documents]
            for name in FIELDS
        ),
        [None if document.labels is None else document.labels.to_json() for document in documents],
        [each.row for each in batch],
        [each.bytes_read for each in batch],
        [len(each.data) for each in batch],
        [xxhash.xxh3_128_digest(each.data) for each in batch],
        [each.edited_out for each in batch],
    ]
    counts: list[Any] = [list(column) for column in zip(*(each.counts for each in batch), strict=True)]
    measured: list[Any] = []
    for measurer in steps.measurers:
        found = measurer.measure(documents)
        measured += [found[name] for name in measurer.columns]
    schema = schema_of(steps.columns())
    base[0] = _as_text(base[0])
    return pa.Table.from_arrays(
        [pa.array(column, type=kind.type) for column, kind in zip([*base, *counts, *measured], schema, strict=True)],
        schema=schema,
    )


def _as_text(texts: list[bytes]) -> pa.Array:
    """UTF-8 as strings, without a copy: `cast` would check it, and import all functions on tables."""
    found = pa.array(texts, type=pa.large_binary())
    return pa.Array.from_buffers(pa.large_string(), len(found), found.buffers())


def _rows(task: MeasureTask, result: Measured) -> Iterator[Document | Rejected]:
    for file in task.files:
        digests: list[str] = []
        yield from read_file(numbered(file, task.work), task.options, digests.append)
        if not file.part[0]:
            result.files.append({"path": file.path, "size": file.size, "digest": digests[0] if digests else ""})


def _note(task: MeasureTask, result: Measured, row: Rejected) -> None:
    result.rows += row.rows
    counts = (result.quarantined if row.damaged else result.blank).setdefault(row.kind, [0, 0])
    counts[0] += row.rows
    counts[1] += row.bytes
    if row.damaged and not result.damage:
        result.damage = f"{row.path}:{row.line}: {row.reason}"
        if task.strict:
            raise _strict_error(result.damage)


def _quarantine_record(row: Rejected) -> dict[str, Any]:
    return {
        "source": row.source,
        "file": row.path,
        "line": row.line,
        "rows": row.rows,
        "bytes": row.bytes,
        "reason": row.reason,
        "excerpt": row.excerpt,
    }
