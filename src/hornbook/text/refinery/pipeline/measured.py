"""Results of phase 1 of prepare for one task: a table of texts and columns, sketches, damaged rows, a manifest."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hornbook.files.artifact import digest_of, finished
from hornbook.text.config.step import StepConfig
from hornbook.text.ingest.document import ReadOptions
from hornbook.text.ingest.inputs import InputFile

VERSION = 4
"""Part of every key: raise it when the same input gives other files."""

FIELDS = ("licence", "url", "date")
"""Metadata of a document (`Document.metadata`) that is stored, as text."""

BASE = (
    ("text", pa.large_string()),
    ("id", pa.string()),
    ("origin", pa.string()),
    *((name, pa.string()) for name in FIELDS),
    ("labels", pa.string()),
    ("row", pa.int64()),
    ("bytes_read", pa.int64()),
    ("bytes", pa.int64()),
    ("hash", pa.binary(16)),
    ("edited_out", pa.uint8()),
)
"""Columns of every document; `edited_out` is k where the k-th edit dropped it: its text is that before the edit."""

ARROW = {
    "int64": pa.int64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "str": pa.string(),
    "list": pa.list_(pa.uint32()),
}


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """Schema of the measured table: the base, then the columns of the steps (name -> dtype)."""
    return pa.schema([*BASE, *((name, ARROW[dtype]) for name, dtype in columns.items())])


@dataclass(frozen=True, slots=True)
class MeasureTask:
    """Input files of one source, or a part of a large one; they become one shard."""

    ordinal: int
    """Index among all tasks."""
    source: str
    shard: int
    """Index among the tasks of the source."""
    files: tuple[InputFile, ...]
    options: ReadOptions
    steps: tuple[StepConfig, ...]
    read_by_steps: str
    """Digest of the files and code that steps read."""
    strict: bool
    work: Path

    @property
    def size(self) -> int:
        """Bytes of the inputs."""
        return sum(file.part_size for file in self.files)

    def _path(self, ending: str) -> Path:
        return self.work / f"measured-{self.ordinal:05d}{ending}"

    @property
    def table(self) -> Path:
        """The edited texts with their columns."""
        return self._path(".parquet")

    @property
    def quarantine(self) -> Path:
        """The damaged rows, one JSON object a line."""
        return self._path(".quarantine.jsonl")

    @property
    def manifest(self) -> Path:
        """Written last: the task is done."""
        return self._path(".json")

    def sketch(self, step: str) -> Path:
        """Sketches of all documents for a step over all documents."""
        return self._path(f".{step}.npy")

    def is_measured(self) -> bool:
        """Whether the task is finished."""
        return finished(self.manifest, self.key()) is not None and self.table.exists()

    def key(self) -> str:
        """Changes when the result would."""
        files = [[file.path, file.stamp, file.problem, file.part] for file in self.files]
        steps = [step.model_dump() for step in self.steps]
        place = [self.source, self.ordinal, self.shard]
        return digest_of([VERSION, *place, files, self.options.to_json(), steps, self.read_by_steps])


@dataclass(slots=True)
class Measured:
    """What a task's manifest says."""

    rows: int = 0
    documents: int = 0
    files: list[dict[str, Any]] = field(default_factory=list)
    """path, size and digest of each input as it was read."""
    blank: dict[str, list[int]] = field(default_factory=dict)
    """Empty rows: reason -> [rows, bytes]."""
    quarantined: dict[str, list[int]] = field(default_factory=dict)
    damage: str = ""
    """The first damaged row, for `strict`."""


def read_columns(task: MeasureTask, names: Iterable[str]) -> dict[str, np.ndarray]:
    """Columns of one task's documents; `hash` is [rows, 2] uint64."""
    names = list(dict.fromkeys(names))
    with pq.ParquetFile(task.table) as file:  # `read_table` would import what reads whole folders
        table = file.read(columns=names)
    return {name: _hashes(table[name]) if name == "hash" else table[name].to_numpy() for name in names}


def _hashes(column: pa.ChunkedArray) -> np.ndarray:
    chunks = [
        np.frombuffer(chunk.buffers()[1], dtype=np.uint64, count=2 * len(chunk), offset=16 * chunk.offset)
        for chunk in column.chunks
        if len(chunk)
    ]
    return np.concatenate(chunks or [np.zeros(0, np.uint64)]).reshape(-1, 2)
