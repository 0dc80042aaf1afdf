"""Phase 3 of prepare, one task: write the kept documents, and the columns of every row with its outcome."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from hornbook.files.artifact import digest_file, digest_of, once
from hornbook.files.durable import writing
from hornbook.text.ingest.labels.labelling import Labelling
from hornbook.text.ingest.labels.rows import names_of
from hornbook.text.refinery.pipeline.decide import NOTHING_LEFT, Verdict, remove
from hornbook.text.refinery.pipeline.plan import FIELDS, MeasureTask, schema_of
from hornbook.text.refinery.report.reviews import Example
from hornbook.text.refinery.step import Steps, build
from hornbook.text.refinery.steps.basics import is_visible
from hornbook.text.store import TableWriter, read_batches

DOCUMENTS = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.large_string()),
        *((name, pa.string()) for name in ("source", "origin", *FIELDS, "labels", "cluster")),
        ("bytes", pa.int64()),
    ]
)
OWN = ("text", "labels", "hash", "edited_out")
"""Columns of the measured table that are not among the signals: `cluster` and `reason` stand for the last two."""
_SHOWN = 2000
"""Characters of an example."""


@dataclass(frozen=True, slots=True)
class ApplyTask:
    """The verdict about the documents of one measured task."""

    measured: MeasureTask
    names: tuple[str, ...]
    """Names of the reasons by their numbers in `verdict.reasons`; 0 is kept."""
    verdict: Verdict
    out: Path

    @property
    def size(self) -> int:
        """Bytes of the inputs."""
        return self.measured.size

    @property
    def documents(self) -> Path:
        """The shard of kept documents."""
        return self.out / "documents" / self.measured.source / f"{self.measured.shard:05d}.parquet"

    @property
    def signals(self) -> Path:
        """The table of all rows."""
        return self.out / "signals" / f"{self.measured.ordinal:05d}.parquet"

    @property
    def samples(self) -> Path:
        """Examples for the reasons, one JSON object a line."""
        return self.measured.work / f"applied-{self.measured.ordinal:05d}.samples.jsonl"

    @property
    def manifest(self) -> Path:
        """Written last: the task is done."""
        return self.measured.work / f"applied-{self.measured.ordinal:05d}.json"

    def key(self) -> str:
        """Changes when the result would."""
        arrays = [xxhash.xxh3_128_hexdigest(each.tobytes()) for each in (self.verdict.reasons, self.verdict.cuts)]
        return digest_of([self.measured.key(), self.names, arrays, list(self.verdict.samples.items())])


@dataclass(slots=True)
class Applied:
    """What a task's manifest says."""

    outputs: dict[str, str]
    """Relative path -> digest."""
    reasons: dict[str, list[int]]
    """Reason -> [rows, bytes as read]."""
    text_bytes: int
    """Of the kept texts, after edits and cuts."""
    changed: dict[str, list[int]]
    """Counter of an edit, or `cut` -> [kept documents that it changed, changes in them (of `cut`: bytes)]."""
    labels: dict[str, int]
    """Name of a label -> kept texts, or words, with it."""


def apply(task: ApplyTask) -> Applied:
    """Write both tables and the examples, unless an earlier run did."""
    return Applied(**once(task, lambda: asdict(_apply(task)), lambda done: _is_whole(task.out, done)))


def _is_whole(out: Path, done: dict[str, Any]) -> bool:
    """Whether a manifest has today's form, and the files are there as it says."""
    files = {out / path: digest for path, digest in done["outputs"].items()}
    return "changed" in done and all(path.is_file() and digest_file(path) == files[path] for path in files)


def _apply(task: ApplyTask) -> Applied:
    steps = build(task.measured.steps)
    schema = _signal_schema(steps)
    found = Applied({}, {}, 0, {name: [0, 0] for name in (*steps.counters, "cut")}, {})
    with (
        writing(task.samples) as samples,
        writing(task.documents) as documents,
        writing(task.signals) as signals,
        TableWriter(documents, DOCUMENTS) as kept,
        TableWriter(signals, schema) as measured,
    ):
        for part in _parts(task):
            _count(found, part, task)
            kept.add_batch(_kept(task, part), int(part.bytes[part.reasons == 0].sum()))
            measured.add_batch(_signals(task, schema, part), 256 * len(part.table))
            for example in _examples(task, part):
                samples.write(json.dumps(asdict(example)).encode() + b"\n")
    found.outputs = {str(path.relative_to(task.out)): digest_file(path) for path in (task.documents, task.signals)}
    return found


@dataclass(slots=True)
class _Part:
    """A batch of rows with their outcome."""

    first: int
    """Its first row."""
    table: pa.Table
    reasons: np.ndarray
    texts: pa.ChunkedArray
    """After the cuts."""
    bytes: np.ndarray
    """Their sizes."""


def _parts(task: ApplyTask) -> Iterator[_Part]:
    """The measured table in batches, judged."""
    first = 0
    for batch in read_batches(task.measured.table):
        yield _judged(task, first, pa.Table.from_batches([batch]))
        first += len(batch)


def _judged(task: ApplyTask, first: int, table: pa.Table) -> _Part:
    """Apply the cuts; a document without a visible character left is dropped."""
    verdict, last = task.verdict, first + len(table)
    reasons, texts = verdict.reasons[first:last].copy(), table["text"]
    sizes = table["bytes"].to_numpy().copy()
    begin, end = np.searchsorted(verdict.cuts[:, 0], (first, last))
    if begin == end:
        return _Part(first, table, reasons, texts, sizes)
    changed = texts.to_pylist()
    cuts = verdict.cuts[begin:end]
    rows, begins = np.unique(cuts[:, 0], return_index=True)
    for row, spans in zip(rows.tolist(), np.split(cuts[:, 1:], begins[1:]), strict=True):
        index = row - first
        if reasons[index] == 0:
            data = remove(changed[index].encode(), spans.tolist())
            changed[index], sizes[index] = data.decode(), len(data)
            if not is_visible(changed[index]):
                reasons[index] = task.names.index(NOTHING_LEFT)
    return _Part(first, table, reasons, pa.chunked_array([pa.array(changed, type=pa.large_string())]), sizes)


def _count(found: Applied, part: _Part, task: ApplyTask) -> None:
    read, edited = part.table["bytes_read"].to_numpy(), part.table["bytes"].to_numpy()
    for number in np.unique(part.reasons).tolist():
        mask = part.reasons == number
        tally = found.reasons.setdefault(task.names[number], [0, 0])
        tally[0] += int(mask.sum())
        tally[1] += int(read[mask].sum())
    kept = part.reasons == 0
    found.text_bytes += int(part.bytes[kept].sum())
    for name, tally in found.changed.items():
        changes = (edited - part.bytes if name == "cut" else part.table[name].to_numpy())[kept]
        tally[0] += int((changes > 0).sum())
        tally[1] += int(changes.sum())
    if (labels := task.measured.options.labels) is not None:
        rows = part.table["labels"].to_pylist()
        for row in np.flatnonzero(kept).tolist():
            for name in names_of(labels, Labelling.from_json(rows[row])):
                found.labels[name] = found.labels.get(name, 0) + 1


def _kept(task: ApplyTask, part: _Part) -> pa.Table:
    table = part.table
    columns = {
        **{name: table[name] for name in ("id", "origin", *FIELDS, "labels")},
        "text": part.texts,
        "source": pa.array([task.measured.source] * len(table)),
        "cluster": _hex(table["hash"]),
        "bytes": pa.array(part.bytes),
    }
    return _where(pa.table(columns, schema=DOCUMENTS), part.reasons == 0)


def _where(table: pa.Table, kept: np.ndarray) -> pa.Table:
    """Rows where `kept` is true, as slices: `filter` would import all functions on tables."""
    turns = np.flatnonzero(np.diff(kept, prepend=False, append=False)).reshape(-1, 2).tolist()
    return pa.concat_tables([table.slice(0, 0), *(table.slice(first, end - first) for first, end in turns)])


def _signal_schema(steps: Steps) -> pa.Schema:
    stored = [each for each in schema_of(steps.columns()) if each.name not in OWN]
    own = [("task", pa.int64()), ("source", pa.string()), ("reason", pa.string()), ("cluster", pa.string())]
    return pa.schema([*own, *stored, ("bytes_kept", pa.int64())])


def _signals(task: ApplyTask, schema: pa.Schema, part: _Part) -> pa.Table:
    rows = len(part.table)
    own = {
        "task": pa.array([task.measured.ordinal] * rows),
        "source": pa.array([task.measured.source] * rows),
        "reason": pa.array([task.names[reason] for reason in part.reasons]),
        "cluster": _hex(part.table["hash"]),
        "bytes_kept": pa.array(np.where(part.reasons == 0, part.bytes, 0)),
    }
    return pa.table([own[name] if name in own else part.table[name] for name in schema.names], schema=schema)


def _hex(column: pa.ChunkedArray) -> pa.Array:
    return pa.array([value.hex() for value in column.to_pylist()], type=pa.string())


def _examples(task: ApplyTask, part: _Part) -> Iterator[Example]:
    samples, table = task.verdict.samples, part.table.select(["id", "origin", "hash", "bytes", "text"])
    for row in filter(samples.__contains__, range(part.first, part.first + len(table))):
        left = part.reasons[row - part.first] != task.names.index(NOTHING_LEFT)
        name, origin, cluster, size, text = table.slice(row - part.first, 1).to_pylist()[0].values()
        about = (task.measured.source, name, origin, cluster.hex(), size, text[:_SHOWN])
        for reason in samples[row]:
            yield Example(reason if left else NOTHING_LEFT, *about)
