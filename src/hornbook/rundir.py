"""The run directory: where everything of a run lies, and how it is written so that no crash can spoil it.

The directory is the only interface between a run and whatever watches or steers it. Its files are of two
kinds: JSON lines that only grow (`Appender`, `read_records`), and small files that are replaced as a whole
(`write_atomic`). One process at a time owns a run (`RunLock`). Records carry (attempt, step, tokens): a
resumed run repeats steps under the next attempt, and `current_branch` gives the history that counts.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import socket
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NotRequired, Self, TypedDict, cast

import psutil

from hornbook.errors import IntegrityError, InUseError, StorageError

TEMPORARY = ".tmp-"
"""Prefix of everything unfinished; whoever holds the lock may delete what carries it."""

_BLOCK = 1 << 16

Status = Literal["running", "finished", "stopped", "failed"]


class Record(TypedDict):
    """What every line of metrics.jsonl and events.jsonl begins with."""

    attempt: int
    """1 for the first process of the run, one more for each restart or rollback."""
    step: int
    """Optimizer steps done when the record was made."""
    tokens: int
    """Tokens consumed when the record was made."""


class StepRecord(Record):
    """A line of metrics.jsonl."""

    loss: float | None
    """Mean negative log-likelihood per target token of the step, in nats; None where it was not finite."""
    token_hash: str
    """Hash of the token ids of the step's global batch."""
    lr: NotRequired[float]
    gradient_norm: NotRequired[float | None]
    """Global norm before clipping."""
    seconds: NotRequired[float]
    data_seconds: NotRequired[float]
    tokens_per_second: NotRequired[float]
    step_tokens: NotRequired[int]
    first_sample: NotRequired[int]
    num_samples: NotRequired[int]
    skipped: NotRequired[bool]
    time: NotRequired[float]


class EventRecord(Record):
    """A line of events.jsonl, the ledger. Further keys belong to the kind."""

    kind: str
    """start, resume, save, evaluation, skip, warning, stop, finish, ..."""
    time: float
    """Seconds since 1970."""


class StateRecord(Record):
    """state.json: the heartbeat, replaced as a whole every few seconds."""

    status: Status
    heartbeat: float
    """Seconds since 1970 when the file was written."""
    total_tokens: NotRequired[int]
    loss: NotRequired[float | None]
    pid: NotRequired[int]
    host: NotRequired[str]
    boot: NotRequired[str]
    started: NotRequired[str]


class RunDir:
    """Paths of a run. Nothing is created before `create`."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.recipe = self.path / "recipe.toml"
        self.env = self.path / "env.json"
        self.data_lock = self.path / "data.lock"
        self.metrics = self.path / "metrics.jsonl"
        self.events = self.path / "events.jsonl"
        self.log = self.path / "log.txt"
        self.state = self.path / "state.json"
        self.lock = self.path / "run.lock"
        self.control = self.path / "control"
        self.samples = self.path / "samples"
        self.evals = self.path / "evals"
        self.checkpoints = self.path / "checkpoints"

    @property
    def name(self) -> str:
        """Last part of the path."""
        return self.path.resolve().name

    def exists(self) -> bool:
        """Whether a run was begun here."""
        return self.recipe.is_file() or self.state.is_file() or self.checkpoints.is_dir()

    def create(self) -> Self:
        """Make the folders and prove that they can be written; StorageError naming the path if not."""
        try:
            for folder in (self.path, self.control, self.samples, self.evals, self.checkpoints):
                folder.mkdir(parents=True, exist_ok=True)
                probe = folder / f"{TEMPORARY}probe-{os.getpid()}"
                probe.write_bytes(b"hornbook")
                probe.unlink()
            sync_directory(self.path)
            sync_directory(self.path.parent)
        except OSError as error:
            raise storage_error(error, self.path) from error
        return self

    def read_state(self) -> StateRecord | None:
        """The heartbeat, or None where there is none or it cannot be read."""
        try:
            state = json.loads(self.state.read_bytes())
        except (OSError, ValueError):
            return None
        return cast(StateRecord, state) if isinstance(state, dict) and "status" in state else None

    def write_state(self, state: StateRecord) -> None:
        """Replace the heartbeat. It is not synced: what matters is in the ledger and the checkpoints."""
        write_atomic(self.state, json.dumps(finite(state)) + "\n", sync=False)

    def clean(self) -> list[str]:
        """Delete what dead writers left in the run's own folder (only with the lock held); gives the names."""
        litter = [entry for entry in self.path.iterdir() if entry.name.startswith(TEMPORARY) and entry.is_file()]
        for entry in litter:
            entry.unlink(missing_ok=True)
        return [entry.name for entry in litter]


class Appender:
    """A file of JSON objects, one a line, that only grows.

    A torn last line (a writer died inside it) is cut on open; `torn` then holds the bytes that were cut, for
    the owner to note in the ledger. A write that fails leaves the file as it was and raises StorageError.

    `sync_seconds`: longest time an appended record stays unsynced, judged at each append; 0 syncs every
    record, None leaves it to `sync()`. `chained` adds `prev` and `sha` to each record (see `chain`).
    """

    def __init__(self, path: Path, *, sync_seconds: float | None = None, chained: bool = False) -> None:
        self.path = path
        self._sync_seconds = sync_seconds
        try:
            new = not path.exists()
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            if new:
                sync_directory(path.parent)
            self._end, self.torn, last = _cut_torn_tail(self._file)
        except OSError as error:
            raise storage_error(error, path) from error
        self._previous: str | None = last.get("sha", "") if chained else None
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
        self._dirty = True
        if self._previous is not None:
            self._previous = record["sha"]
        if self._sync_seconds is not None and time.monotonic() - self._synced >= self._sync_seconds:
            self.sync()

    def sync(self) -> None:
        """Return when everything appended is on disk."""
        if self._dirty:
            try:
                os.fsync(self._file)
            except OSError as error:
                raise storage_error(error, self.path) from error
            self._dirty = False
        self._synced = time.monotonic()

    def close(self) -> None:
        """Sync and close; a second close does nothing."""
        if self._file >= 0:
            self.sync()
            os.close(self._file)
            self._file = -1


def read_records(path: Path, offset: int = 0) -> Iterator[tuple[dict[str, Any], int]]:
    """Yield (record, byte offset after it) from `offset` on; a last line still being written is left for later.

    A file that does not exist yet has no records. Raises IntegrityError where a whole line is not a JSON object.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            record = _parse(line)
            if record is None:
                raise IntegrityError(f"{path}: the line at byte {offset} is not a JSON object: the file was damaged")
            offset += len(line)
            yield record, offset


def current_branch(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The history that counts: each step once, as its last attempt left it.

    A later attempt starts again at some step; what earlier attempts did from there on is dropped, even
    where the later one has not got as far yet.
    """
    branch: list[dict[str, Any]] = []
    for record in records:
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
    for record, _ in read_records(path):
        if chain(record, record.get("prev", "")).get("sha") != record.get("sha"):
            raise IntegrityError(f"{path}: record {count + 1} was altered after it was written")
        if record["prev"] != previous:
            raise IntegrityError(f"{path}: records are missing or foreign before record {count + 1}")
        previous, count = record["sha"], count + 1
    return count


def write_atomic(path: Path, data: str | bytes, *, sync: bool = True) -> None:
    """Replace a small file as a whole: a reader sees the old or the new, a crash leaves the old or the new.

    Raises StorageError (disk full, read-only) and then leaves the old file and no litter.
    """
    temporary = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        write_file(temporary, data.encode() if isinstance(data, str) else data, sync=sync)
        os.replace(temporary, path)
        if sync:
            sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise storage_error(error, path) from error


def write_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file in its place and, unless told not to, return only when its bytes are on disk. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        if sync:
            os.fsync(file)
    finally:
        os.close(file)


def sync_directory(folder: Path) -> None:
    """Return when the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def storage_error(error: OSError, path: Path) -> StorageError:
    """The error for the user: which path, what the system said, what to do."""
    remedies = {
        errno.ENOSPC: "free some space or choose another folder",
        errno.EDQUOT: "the quota is used up: free some space or choose another folder",
        errno.EROFS: "the file system is read-only: choose another folder",
        errno.EACCES: "change the permissions or choose another folder",
        errno.EPERM: "change the permissions or choose another folder",
    }
    remedy = remedies.get(error.errno or 0, "check the disk")
    return StorageError(f"cannot write {path}: {error.strerror or error}; {remedy}")


class RunLock:
    """Ownership of a run directory: an flock that dies with its process, and the owner's name for people.

    A second owner gets an InUseError that names the first, at once. The system frees the lock of a killed
    process, so it needs no clean-up. A lock left by another host cannot be judged from here (its flock may not
    reach us over a network file system) and is refused unless that host released it.
    """

    def __init__(self, run: RunDir) -> None:
        self._path = run.lock
        self._file = -1
        self.previous: dict[str, Any] | None = None
        """The owner found on entry that did not release the lock (it was killed), else None."""

    def __enter__(self) -> Self:
        try:
            self._file = self._open()
        except OSError as error:
            raise storage_error(error, self._path) from error
        owner = self._read()
        if owner and owner.get("host") != socket.gethostname():
            self._drop()
            raise InUseError(
                f"{self._path.parent} is in use by {_describe(owner)}, on another host, where it cannot be seen "
                f"whether it lives; if it is dead, delete {self._path} and start again"
            )
        self.previous = owner
        self._write(json.dumps(process_identity(os.getpid()) | {"since": time.time()}) + "\n")
        os.register_at_fork(after_in_child=self._drop)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            self._write("")
            self._drop()

    def _open(self) -> int:
        """Open and lock the file that the path names now (a person may delete it while we wait)."""
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file).st_ino == os.stat(self._path).st_ino:
                    return file
            except BlockingIOError:
                self._file = file
                owner = self._read()
                self._drop()
                name = _describe(owner) if owner else "another process"
                raise InUseError(
                    f"{self._path.parent} is in use by {name}; stop it first, or use another folder"
                ) from None
            except FileNotFoundError:
                pass
            os.close(file)

    def _read(self) -> dict[str, Any] | None:
        try:
            owner = json.loads(os.pread(self._file, _BLOCK, 0))
        except ValueError:
            return None
        return owner if isinstance(owner, dict) else None

    def _write(self, text: str) -> None:
        """In place: a rename would leave the flock on a file without a name."""
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text.encode(), 0)
        except OSError as error:
            self._drop()
            raise storage_error(error, self._path) from error

    def _drop(self) -> None:
        """Close without a word; in a forked child the lock stays with the parent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def process_identity(pid: int) -> dict[str, Any]:
    """host, pid, boot id and start time: together they name one process for ever, though pids are used again."""
    return {"host": socket.gethostname(), "pid": pid, "boot": _boot_id(), "started": _start_time(pid)}


def is_alive(owner: Mapping[str, Any]) -> bool | None:
    """Whether the process of a `process_identity` lives; None where that cannot be known from this host."""
    if owner.get("host") != socket.gethostname() or "pid" not in owner:
        return None
    return owner.get("boot") == _boot_id() and owner.get("started") == _start_time(owner["pid"])


def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else f"{psutil.boot_time():.0f}"


def _start_time(pid: int) -> str:
    """When the process began, in the system's own terms; "" where there is no such process."""
    try:
        if os.path.exists("/proc/self/stat"):
            # Ticks since boot, the 22nd field; the 2nd is the command in brackets and may hold blanks.
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{psutil.Process(pid).create_time():.2f}"
    except (OSError, psutil.Error):
        return ""


def _describe(owner: Mapping[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner.get("since", 0)))
    return f"process {owner.get('pid')} on {owner.get('host')} (since {since})"


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
    return json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


def _cut_torn_tail(file: int) -> tuple[int, int, dict[str, Any]]:
    """Cut everything after the last whole record; gives (length kept, bytes cut, last record)."""
    length = end = os.fstat(file).st_size
    while end:
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
