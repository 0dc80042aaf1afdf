"""Phase 3 of prepare, one task: write the kept documents, and the signals of every row with what became of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from hornbook.text.measure import MeasureTask
from hornbook.text.steps import SIGNALS
from hornbook.text.store import TableWriter, digest_file, digest_of, read_batches, read_json, write_json, writing

DOCUMENTS = pa.schema(
    [
        ("id", pa.string()),
        ("text", pa.large_string()),
        ("source", pa.string()),
        ("origin", pa.string()),
        ("cluster", pa.string()),
        ("bytes", pa.int64()),
    ]
)
SIGNAL_TABLE = pa.schema(
    [
        ("task", pa.int64()),
        ("row", pa.int64()),
        ("source", pa.string()),
        ("id", pa.string()),
        ("origin", pa.string()),
        ("reason", pa.string()),
        ("cluster", pa.string()),
        ("bytes_read", pa.int64()),
        ("bytes", pa.int64()),
        *((name, pa.int64()) for name in SIGNALS),
    ]
)


@dataclass(frozen=True, slots=True)
class ApplyTask:
    """The decisions about the documents of one measured task."""

    measured: MeasureTask
    names: tuple[str, ...]
    """What the numbers in `reasons` mean; 0 is kept."""
    reasons: bytes
    """One uint8 per document."""
    out: Path

    @property
    def documents(self) -> Path:
        """The shard of kept documents."""
        return self.out / "documents" / self.measured.source / f"{self.measured.shard:05d}.parquet"

    @property
    def signals(self) -> Path:
        """The table of all rows."""
        return self.out / "signals" / f"{self.measured.ordinal:05d}.parquet"

    @property
    def manifest(self) -> Path:
        """Written last: the task is done."""
        return self.measured.work / f"applied-{self.measured.ordinal:05d}.json"

    def key(self) -> str:
        """Changes when the result would."""
        return digest_of([self.measured.key(), self.names, xxhash.xxh3_128_hexdigest(self.reasons)])


def apply(task: ApplyTask) -> dict[str, Any]:
    """Write both tables unless they are there; gives {relative path: digest}."""
    done = read_json(task.manifest)
    if isinstance(done, dict) and done.get("key") == task.key() and _intact(task.out, done["outputs"]):
        return done["outputs"]
    with (
        writing(task.documents) as documents,
        writing(task.signals) as signals,
        TableWriter(documents, DOCUMENTS) as kept,
        TableWriter(signals, SIGNAL_TABLE) as measured,
    ):
        _write(task, kept, measured)
    outputs = {str(path.relative_to(task.out)): digest_file(path) for path in (task.documents, task.signals)}
    write_json(task.manifest, {"key": task.key(), "outputs": outputs})
    return outputs


def _intact(out: Path, outputs: dict[str, str]) -> bool:
    return all((out / path).is_file() and digest_file(out / path) == digest for path, digest in outputs.items())


def _write(task: ApplyTask, documents: TableWriter, signals: TableWriter) -> None:
    measured = task.measured
    reasons = np.frombuffer(task.reasons, dtype=np.uint8)
    index = 0
    for batch in read_batches(measured.table):
        for row in batch.to_pylist():
            reason, cluster = int(reasons[index]), row["hash"].hex()
            index += 1
            if reason == 0:
                kept = (row["id"], row["text"], measured.source, row["origin"], cluster, row["bytes"])
                documents.add(kept, row["bytes"])
            place = (measured.ordinal, row["row"], measured.source, row["id"], row["origin"], task.names[reason])
            numbers = (row["bytes_read"], row["bytes"], *(row[name] for name in SIGNALS))
            signals.add((*place, cluster, *numbers), 256)
    assert index == len(reasons)
