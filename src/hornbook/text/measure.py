"""Phase 1 of prepare, one task: read the inputs, edit each text, measure its signals, keep all of it on disk."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from json import dumps
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hornbook.errors import IntegrityError
from hornbook.text.config import StepConfig
from hornbook.text.document import Document, Rejected
from hornbook.text.inputs import InputFile
from hornbook.text.readers import ReadOptions, read_file
from hornbook.text.steps import SIGNALS, Columns, build_edit, content_hash
from hornbook.text.store import TableWriter, digest_of, read_json, write_json, writing

VERSION = 1
"""Part of every key: raise it when the same input shall give other files."""

SCHEMA = pa.schema(
    [
        ("text", pa.large_string()),
        ("id", pa.string()),
        ("origin", pa.string()),
        ("row", pa.int64()),
        ("bytes_read", pa.int64()),
        ("bytes", pa.int64()),
        ("hash", pa.binary(16)),
        *((name, pa.int64()) for name in SIGNALS),
    ]
)


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """Some input files of one source; they become one shard."""

    ordinal: int
    """Place among all tasks."""
    source: str
    shard: int
    """Place among the tasks of the source."""
    files: tuple[InputFile, ...]
    options: ReadOptions
    steps: tuple[StepConfig, ...]
    strict: bool
    work: Path

    @property
    def size(self) -> int:
        """Bytes of the inputs."""
        return sum(file.size for file in self.files)

    @property
    def table(self) -> Path:
        """The edited texts with their signals."""
        return self.work / f"measured-{self.ordinal:05d}.parquet"

    @property
    def quarantine(self) -> Path:
        """The damaged rows, one JSON object a line."""
        return self.work / f"measured-{self.ordinal:05d}.quarantine.jsonl"

    @property
    def manifest(self) -> Path:
        """Written last: the task is done."""
        return self.work / f"measured-{self.ordinal:05d}.json"

    def key(self) -> str:
        """Changes when the result would."""
        files = [[file.path, file.stamp, file.problem] for file in self.files]
        steps = [step.model_dump() for step in self.steps]
        return digest_of([VERSION, self.source, self.ordinal, self.shard, files, asdict(self.options), steps])


@dataclass(slots=True)
class Measured:
    """What a task's manifest says."""

    key: str
    rows: int = 0
    documents: int = 0
    files: list[dict[str, Any]] = field(default_factory=list)
    """path, size and digest of each input as it was read."""
    blank: dict[str, list[int]] = field(default_factory=dict)
    """Rows that are empty by nature: reason -> [rows, bytes]."""
    quarantined: dict[str, list[int]] = field(default_factory=dict)
    damage: str = ""
    """The first damaged row, for `strict`."""


def finished(task: MeasureTask) -> Measured | None:
    """The manifest of a task that is done, else None."""
    data = read_json(task.manifest)
    if not isinstance(data, dict) or data.get("key") != task.key() or not task.table.exists():
        return None
    return Measured(**data)


def measure(task: MeasureTask) -> Measured:
    """Run the task unless it is done. Raises IntegrityError at the first damaged row if `strict`."""
    result = finished(task)
    if result is None:
        result = _measure(task)
    if task.strict and result.damage:
        raise _strict_error(result.damage)
    return result


def _strict_error(damage: str) -> IntegrityError:
    return IntegrityError(f"{damage}; mend the row, or run without --strict to count it in quarantine and go on")


def _measure(task: MeasureTask) -> Measured:
    result = Measured(task.key())
    edit = build_edit(list(task.steps))
    with (
        writing(task.table) as file,
        writing(task.quarantine) as quarantine,
        TableWriter(file, SCHEMA, compression="lz4") as writer,
    ):
        for row in _rows(task, result):
            if isinstance(row, Rejected):
                _note(task, result, row)
                if row.damaged:
                    quarantine.write(dumps(_quarantine_record(row)).encode() + b"\n")
                continue
            text = edit(row.text)
            data = text.encode()
            read = len(data) if text is row.text else len(row.text.encode())
            signals = [measure_signal(text) for measure_signal in SIGNALS.values()]
            writer.add(
                (text, row.id, row.origin, result.rows, read, len(data), content_hash(data), *signals), len(data)
            )
            result.rows += 1
            result.documents += 1
    write_json(task.manifest, asdict(result))
    return result


def _rows(task: MeasureTask, result: Measured) -> Iterator[Document | Rejected]:
    for file in task.files:
        digests: list[str] = []
        yield from read_file(file, task.options, digests.append)
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


def read_signals(tasks: list[MeasureTask]) -> Columns:
    """The columns of all tasks one after the other: `hash` [rows, 2] uint64, the others [rows] int64."""
    names = ["bytes_read", "bytes", *SIGNALS]
    parts: dict[str, list[np.ndarray]] = {name: [] for name in (*names, "hash")}
    for task in tasks:
        table = pq.read_table(task.table, columns=[*names, "hash"])
        for name in names:
            parts[name].append(table.column(name).to_numpy())
        parts["hash"].append(_hashes(table.column("hash")))
    return {name: np.concatenate(part) for name, part in parts.items()}


def _hashes(column: pa.ChunkedArray) -> np.ndarray:
    chunks = [
        np.frombuffer(chunk.buffers()[1], dtype=np.uint64, count=2 * len(chunk), offset=16 * chunk.offset)
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate(chunks or [np.zeros(0, np.uint64)]).reshape(-1, 2)
