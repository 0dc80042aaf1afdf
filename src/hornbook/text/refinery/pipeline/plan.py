"""Phase 1 of prepare as tasks: the files of each source cut into shards, and what measuring writes for each of them."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from hornbook.errors import UsageError
from hornbook.files.artifact import digest_file, digest_of, finished
from hornbook.text.config.step import StepConfig
from hornbook.text.config.text import TextConfig
from hornbook.text.ingest.document import ReadOptions
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.labels.parallel import stamped_inputs
from hornbook.text.ingest.parts import cut
from hornbook.text.pool import choose_workers

VERSION = 5
"""Part of every key: raise it when the same input gives other files."""

FIELDS = ("licence", "url", "date")
"""Metadata of a document (`Document.metadata`) that is stored, as text."""

BASE = (
    ("text", pa.large_string()),
    *((name, pa.string()) for name in ("id", "origin", *FIELDS, "labels")),
    *((name, pa.int64()) for name in ("row", "bytes_read", "bytes")),
    ("hash", pa.binary(16)),
    ("edited_out", pa.uint8()),
)
"""Columns of every document; `edited_out` is k where the k-th edit dropped it: its text is that before the edit."""

_MIN_TASK_BYTES = 2 * 2**20
_SMALL_BYTES = 8 * 2**20
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


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


def list_all(config: TextConfig) -> dict[str, list[InputFile]]:
    """The input files of every source, in the order of the configuration."""
    if not config.sources:
        raise UsageError("there is nothing to prepare: name paths, or give text.sources in the recipe")
    for name in config.sources:
        if not _NAME.fullmatch(name):
            raise UsageError(f"source name {name!r}: use letters, digits, '-', '_' and '.' (it becomes a folder)")
    return {name: stamped_inputs(name, source, config.labels) for name, source in config.sources.items()}


def plan(config: TextConfig, inputs: dict[str, list[InputFile]], work: Path) -> list[MeasureTask]:
    """Cut the inputs into tasks of about equal size, one per shard. The result depends on the inputs alone."""
    total = sum(file.size for files in inputs.values() for file in files)
    size = min(config.shard_bytes, max(_MIN_TASK_BYTES, total // 16))
    steps, read = tuple(config.all_steps), digest_of(read_code(config))
    tasks: list[MeasureTask] = []
    for name, files in inputs.items():
        options = ReadOptions.of(config.sources[name], config.max_document_bytes, config.labels)
        pieces = files if config.labels else [part for file in files for part in cut(file, size, options.encoding)]
        for shard, group in enumerate(_groups(pieces, size)):
            tasks.append(MeasureTask(len(tasks), name, shard, group, options, steps, read, config.strict, work))
    return tasks


def _groups(files: list[InputFile], size: int) -> Iterator[tuple[InputFile, ...]]:
    group: list[InputFile] = []
    filled = 0
    for file in files:
        if group and filled + file.part_size > size:
            yield tuple(group)
            group, filled = [], 0
        group.append(file)
        filled += file.part_size
    yield tuple(group)


def read_by_steps(steps: Sequence[StepConfig]) -> list[str]:
    """Digests of the files that steps read, versions of their packages. Raises UsageError where a file is missing."""
    found: list[str] = []
    for step in steps:
        found += map(_version, step.packages())
        for path in step.files():
            try:
                found.append(digest_file(Path(path)))
            except OSError as error:
                raise UsageError(f"step {step.label!r}: cannot read {path}: {error.strerror}") from error
    return found


def read_code(config: TextConfig) -> list[str]:
    """`read_by_steps`, and digests of the files of readers from outside."""
    files = [path for source in config.sources.values() for path in source.reads()]
    return [*read_by_steps(config.steps), *(digest_file(Path(path)) for path in files)]


def _version(package: str) -> str:
    """Name and version; where the package is missing the step says how to install it."""
    try:
        return f"{package} {metadata.version(package)}"
    except metadata.PackageNotFoundError:
        return package


def workers_for(asked: int, tasks: list[MeasureTask], total: int) -> int:
    """Number of processes: one where others would not see the input (memory://), or where it is too small."""
    if any(file.path.startswith("memory://") for task in tasks for file in task.files):
        return 1
    return 1 if not asked and total < _SMALL_BYTES else choose_workers(asked, len(tasks))


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    """Schema of the measured table: the base, then the columns of the steps (name -> dtype)."""
    lists = pa.list_(pa.uint32())
    return pa.schema([*BASE, *((name, lists if dtype == "list" else dtype) for name, dtype in columns.items())])


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
