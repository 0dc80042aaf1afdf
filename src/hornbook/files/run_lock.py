"""The lock of a run directory: one process owns it, and the lock file names that process."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

import psutil
from pydantic import Field

from hornbook.errors import IntegrityError, InUseError
from hornbook.files.durable import storage_error, storage_errors
from hornbook.files.file_records import FileRecord, as_record
from hornbook.files.run_directory import RunDir
from hornbook.files.strict_json import InvalidJson, parse_json

_BLOCK = 1 << 16
_PROC = Path("/proc")
ORPHAN_SECONDS = 5.0
"""Longest wait for the children of a killed owner, which die with it (`hornbook.run.launch.rank`)."""


_REMEDY = "if no process uses the run, delete the file and start again"


class _Owner(FileRecord):
    """The owner in the lock file: `process_identity`, and since when."""

    host: str = ""
    pid: Annotated[int, Field(ge=0, lt=2**31)] = 0
    boot: str = ""
    started: str = ""
    since: Annotated[float, Field(ge=0, lt=1e11)] = 0.0


class RunLock:
    """Ownership of a run directory: an flock, and a file that names the owner.

    A second process gets an InUseError that names the owner, at once. The system releases the flock of a killed
    process. Whether the owner on another host is alive cannot be seen from here (over a network file system its flock
    may be invisible), so its lock is refused unless that host released it.

    `shared`: forked children keep the flock too, so that the run is owned while any of them lives. Children of a killed
    owner die within moments; taking the lock waits for that.
    """

    def __init__(self, run: RunDir, *, shared: bool = False) -> None:
        self._path, self._shared = run.lock, shared
        self._file = -1
        self.previous: dict[str, Any] | None = None
        """The owner found on entry that did not release the lock (it was killed), else None."""

    def __enter__(self) -> Self:
        with storage_errors(self._path):
            self._file = self._open()
        owner = self._read()
        if owner and owner.get("host") != socket.gethostname():
            self._drop()
            raise InUseError(
                f"{self._path.parent} is in use by {_describe(owner)}, on another host, where it cannot be seen "
                f"whether it lives; if it is dead, delete {self._path} and start again"
            )
        self.previous = owner
        self._write(json.dumps(process_identity(os.getpid()) | {"since": time.time()}) + "\n")
        if not self._shared:
            os.register_at_fork(after_in_child=self._drop)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            self._write("")
            self._drop()

    def _open(self) -> int:
        """Open and lock the file that the path names now (a person may delete it while we wait)."""
        deadline = time.monotonic() + ORPHAN_SECONDS
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
                if owner and is_alive(owner) is False and time.monotonic() < deadline:
                    time.sleep(0.05)
                    continue
                name = _describe(owner) if owner else "another process"
                raise InUseError(
                    f"{self._path.parent} is in use by {name}; stop it first, or use another folder"
                ) from None
            except FileNotFoundError:
                pass
            os.close(file)

    def _read(self) -> dict[str, Any] | None:
        """The owner; None if the file is empty or torn. Raises IntegrityError if its content is of no owner."""
        try:
            owner = parse_json(os.pread(self._file, _BLOCK, 0))
        except InvalidJson:
            return None
        try:
            return as_record(owner, self._path, _Owner, _REMEDY).model_dump(exclude_unset=True)
        except IntegrityError:
            self._drop()
            raise

    def _write(self, text: str) -> None:
        """Write in place: a rename would leave the flock on a file without a name."""
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, text.encode(), 0)
        except OSError as error:
            self._drop()
            raise storage_error(error, self._path) from error

    def _drop(self) -> None:
        """Close the file and leave its content; in a forked child the lock stays with the parent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def process_identity(pid: int) -> dict[str, Any]:
    """host, pid, boot id and start time, which together identify one process for ever (pids are reused)."""
    return {"host": socket.gethostname(), "pid": pid, "boot": _boot_id(), "started": _start_time(pid)}


def is_alive(owner: Mapping[str, Any]) -> bool | None:
    """Whether the process of a `process_identity` lives; None if this host cannot know."""
    if owner.get("host") != socket.gethostname() or "pid" not in owner:
        return None
    return owner.get("boot") == _boot_id() and owner.get("started") == _start_time(owner["pid"])


def _boot_id() -> str:
    """Id of this boot of the system; "" without /proc, where `_start_time` is calendar time and needs no boot id."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return ""


def _start_time(pid: int) -> str:
    """Start time of a process in the system's own terms; "" if there is no such process."""
    try:
        if (_PROC / "self/stat").exists():
            # Ticks since boot, the 22nd field; the 2nd is the command in brackets and may hold blanks.
            return (_PROC / f"{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return f"{psutil.Process(pid).create_time():.2f}"
    except (OSError, psutil.Error):
        return ""


def _describe(owner: Mapping[str, Any]) -> str:
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(owner.get("since", 0)))
    return f"process {owner.get('pid')} on {owner.get('host')} (since {since})"
