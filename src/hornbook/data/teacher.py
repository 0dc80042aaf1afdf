"""What the teacher of a distillation predicts at each token, kept beside the shards so that it is computed once.

    DATA/plans/teacher-DIGEST/PART/   some rows of one source: rows.npy int64 [rows], ids.npy uint16 or uint32 and
                                      logs.npy float32 [rows, sequence, top], manifest.json

The digest is that of the teacher's weights and settings, the temperature, the number of tokens kept, and the plan of
the source's rows: what lies there belongs to these rows and no others. A part appears whole; one that is damaged is
left out, and made again.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash
from jaxtyping import Float32, Int64

from hornbook.data.batch_builder import SampleRefs
from hornbook.errors import IntegrityError
from hornbook.files.artifact import digest_file, read_json, write_json
from hornbook.files.durable import storage_errors, writing_folder

_FILES = ("rows.npy", "ids.npy", "logs.npy")
PART_BYTES = 2**26
"""Of the predictions of one part: what a killed job loses."""


class Predictions(NamedTuple):
    """The likeliest tokens of some rows."""

    ids: Int64[np.ndarray, "rows sequence top"]
    logs: Float32[np.ndarray, "rows sequence top"]


class TeacherRows:
    """The predictions of one source that are there."""

    def __init__(self, folder: Path, rows: int) -> None:
        """`rows`: of the source's plan."""
        self.folder = folder
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        self._places = np.full((2, rows), -1, np.int64)
        """Part of each row, and its place there."""
        for part in sorted(folder.glob("[0-9a-f]*")) if folder.is_dir() else []:
            with suppress(OSError, ValueError, KeyError, IntegrityError):
                self._open(part)

    def _open(self, part: Path) -> None:
        """Use a part. Raises an error where it is damaged."""
        stated = read_json(part / "manifest.json")
        if any(digest_file(part / name) != stated[name] for name in _FILES):
            raise IntegrityError(f"{part} is damaged: delete it, and it is made again")
        rows, ids, logs = (np.load(part / name, mmap_mode="r", allow_pickle=False) for name in _FILES)
        if len(rows) and rows.max() < self._places.shape[1]:
            self._places[0, rows], self._places[1, rows] = len(self._parts), np.arange(len(rows))
        self._parts.append((ids, logs))

    def missing(self, rows: Int64[np.ndarray, " rows"]) -> Int64[np.ndarray, " missing"]:
        """Those of some rows that are not there, ascending."""
        rows = np.unique(rows)
        return rows[self._places[0, rows] < 0]

    def add(self, rows: Int64[np.ndarray, " rows"], found: Predictions, wide: bool) -> None:
        """Keep the predictions of some rows; `wide`: ids need 32 bits. Raises StorageError."""
        part = self.folder / xxhash.xxh3_64_hexdigest(rows.tobytes())
        with storage_errors(part):
            self.folder.mkdir(parents=True, exist_ok=True)
        with writing_folder(part) as stage:
            np.save(stage / "rows.npy", rows)
            np.save(stage / "ids.npy", found.ids.astype(np.uint32 if wide else np.uint16))
            np.save(stage / "logs.npy", found.logs.astype(np.float32))
            write_json(stage / "manifest.json", {name: digest_file(stage / name) for name in _FILES})
        self._open(part)

    def read(self, rows: Int64[np.ndarray, " rows"]) -> Predictions:
        """The predictions of some rows. Raises IntegrityError where one is not there."""
        if len(absent := self.missing(rows)):
            raise IntegrityError(
                f"{self.folder} lacks the teacher's predictions of row {absent[0]:,}, which the run did not mean to "
                "read when it started (data were left out since): `hornbook resume` computes them"
            )
        found = [tuple(array[place] for array in self._parts[part]) for part, place in self._places[:, rows].T]
        ids, logs = (np.stack(each) for each in zip(*found, strict=True))
        return Predictions(ids.astype(np.int64), logs)


class TeacherTable:
    """The predictions of all sources of a run."""

    def __init__(self, sources: Sequence[TeacherRows]) -> None:
        self.sources = list(sources)

    def read(self, refs: SampleRefs) -> Predictions:
        """The predictions of the rows of some samples. Raises IntegrityError where one is not there."""
        numbers = refs.sources.tolist()
        found = {source: self.sources[source].read(refs.rows[refs.sources == source]) for source in set(numbers)}
        places = {source: iter(zip(*some, strict=True)) for source, some in found.items()}
        pairs = [next(places[source]) for source in numbers]
        return Predictions(np.stack([ids for ids, _ in pairs]), np.stack([logs for _, logs in pairs]))


def in_parts(rows: Int64[np.ndarray, " rows"], sequence: int, top: int) -> Iterator[Int64[np.ndarray, " some"]]:
    """Rows cut into parts of at most `PART_BYTES` of predictions."""
    size = max(PART_BYTES // (sequence * top * 8), 1)
    yield from (rows[first : first + size] for first in range(0, len(rows), size))
