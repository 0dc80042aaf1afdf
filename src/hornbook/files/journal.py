"""Append-only files of JSON lines, and the history in them.

A line torn by a killed writer is cut off when the file is opened again, and never read. Records carry (attempt, step,
tokens): a resumed run repeats steps under the next attempt, and `current_branch` gives the steps that are in force. A
chained file shows whether a record was altered, lost or added.
"""

import hashlib
import json
import math
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import xxhash

from hornbook.errors import IntegrityError, StorageError
from hornbook.files.durable import storage_error, storage_errors, sync_directory, sync_file
from hornbook.files.filesystem import exists
from hornbook.files.strict_json import InvalidJson, parse_json

_BLOCK = 1 << 16
_READ = 1 << 20


class Appender:
    """Appends JSON objects, one per line, to a file.

    A torn last line (its writer was killed) is cut off on opening; `torn` is the number of bytes that were cut. A write
    that fails leaves the file as it was and raises StorageError.

    `sync_seconds`: longest time an appended record stays unsynced, judged at each append; 0 syncs every
    record, None leaves it to `sync()`. `chained` adds `prev` and `sha` to each record (see `chain`).
    """

    def __init__(self, path: Path, *, sync_seconds: float | None = None, chained: bool = False) -> None:
        self.path = path
        self._sync_seconds = sync_seconds
        with storage_errors(path):
            new = not exists(path)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            if new:
                sync_directory(path.parent)
            self._end, self.torn, last = _cut_torn_tail(self._file)
        self._previous: str | None = last.get("sha", "") if chained else None
        self._hash = xxhash.xxh3_128()
        for first in range(0, self._end, _READ):
            self._hash.update(os.pread(self._file, min(_READ, self._end - first), first))
        self._synced = time.monotonic()
        self._dirty = bool(self.torn)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one record. Floats keep every bit; those that are not finite become null."""
        if self._previous is not None:
            record = chain(record, self._previous)
        line = json.dumps(finite(record), ensure_ascii=False).encode() + b"\n"
        try:
            view = memoryview(line)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise storage_error(error, self.path) from error
        self._end += len(line)
        self._hash.update(line)
        self._dirty = True
        if self._previous is not None:
            self._previous = record["sha"]
        if self._sync_seconds is not None and time.monotonic() - self._synced >= self._sync_seconds:
            self.sync()

    @property
    def head(self) -> str:
        """`sha` of the newest record of a chained file; "" where there is none."""
        return self._previous or ""

    @property
    def extent(self) -> dict[str, Any]:
        """Number of bytes in the file and their XXH3-128, for `first_broken`."""
        return {"bytes": self._end, "xxh3_128": self._hash.hexdigest()}

    def check(self) -> None:
        """Raise StorageError if the file was deleted, moved or replaced since it was opened."""
        with storage_errors(self.path):
            there, mine = os.stat(self.path), os.fstat(self._file)
        if (there.st_dev, there.st_ino) != (mine.st_dev, mine.st_ino):
            raise StorageError(f"cannot write {self.path}: another file was put in its place; put back what was there")

    def sync(self) -> None:
        """Return when all appended records are on disk. Raises StorageError."""
        if self._dirty:
            with storage_errors(self.path):
                sync_file(self._file)
            self._dirty = False
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and close; a second close does nothing."""
        if self._file >= 0:
            self.sync()
            os.close(self._file)
            self._file = -1


def read_records(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a file, none if it does not exist yet; an incomplete last line is not read.

    Raises IntegrityError where a whole line is not a JSON object.
    """
    offset = 0
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            if not line.endswith(b"\n"):
                return
            record = _parse(line)
            if record is None:
                raise IntegrityError(f"{path}: the line at byte {offset} is not a JSON object: the file was damaged")
            offset += len(line)
            yield record


def current_branch(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps in force: each step once, by its last attempt.

    A later attempt starts again at some step; the records of earlier attempts from that step on are dropped, also
    those that the later attempt has not reached yet. Raises IntegrityError.
    """
    branch: list[dict[str, Any]] = []
    for record in records:
        if any(type(record.get(name)) is not int for name in ("attempt", "step")):
            known = ascii(record)[:80]
            raise IntegrityError(f"a record lacks a whole number as its attempt or step, the file was damaged: {known}")
        while branch and branch[-1]["attempt"] < record["attempt"] and branch[-1]["step"] >= record["step"]:
            branch.pop()
        branch.append(record)
    return branch


def chain(record: Mapping[str, Any], previous: str) -> dict[str, Any]:
    """The record with `prev` (the sha of the record before, "" for the first) and `sha` (SHA-256 of all the rest)."""
    linked = {**finite(record), "prev": previous}
    linked.pop("sha", None)
    return {**linked, "sha": hashlib.sha256(_canonical(linked)).hexdigest()}


def verify_chain(path: Path) -> int:
    """Number of records of a chained file; IntegrityError naming the first line that was altered, lost or added."""
    previous, count = "", 0
    for record in read_records(path):
        if chain(record, record.get("prev", "")).get("sha") != record.get("sha"):
            raise IntegrityError(f"{path}: record {count + 1} was altered after it was written")
        if record["prev"] != previous:
            raise IntegrityError(f"{path}: records are missing or foreign before record {count + 1}")
        previous, count = record["sha"], count + 1
    return count


def first_broken(path: Path, extents: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The first of the extents (`Appender.extent`, in order) that a file no longer begins with; None: it has all."""
    digest, done = xxhash.xxh3_128(), 0
    try:
        with path.open("rb") as file:
            for extent in extents:
                while done < extent["bytes"] and (part := file.read(min(_READ, extent["bytes"] - done))):
                    digest.update(part)
                    done += len(part)
                if (done, digest.hexdigest()) != (extent["bytes"], extent["xxh3_128"]):
                    return extent
    except OSError:
        return next(iter(extents), None)
    return None


def finite(value: Any) -> Any:
    """The value as JSON can hold it: floats that are not finite become None, at any depth."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def _canonical(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(errors="surrogatepass")


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = parse_json(line)
    except InvalidJson:
        return None
    return record if isinstance(record, dict) else None


def _cut_torn_tail(file: int) -> tuple[int, int, dict[str, Any]]:
    """Cut the file after its last whole record: (bytes kept, bytes cut, last record)."""
    length = end = os.fstat(file).st_size
    while end:  # nothing behind `end` is a whole record: go back by a line until the last one is
        start = _line_start(file, end - 1)
        line = os.pread(file, end - start, start)
        record = _parse(line) if line.endswith(b"\n") else None
        if record is not None:
            break
        end = start
    else:
        record = {}
    if end < length:
        os.ftruncate(file, end)
    return end, length - end, record


def _line_start(file: int, end: int) -> int:
    """Offset after the last line feed before `end`, or 0."""
    while end > 0:
        begin = max(0, end - _BLOCK)
        found = os.pread(file, end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
