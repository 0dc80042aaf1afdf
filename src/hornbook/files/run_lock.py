"""The lock of a run directory: one process owns it, and the lock file names that process."""

import fcntl
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, Self

from pydantic import Field

from hornbook.errors import IntegrityError, InUseError, TakenOverError
from hornbook.files.durable import storage_error, storage_errors
from hornbook.files.file_records import FileRecord, as_record
from hornbook.files.run_directory import RunDir
from hornbook.files.strict_json import InvalidJson, parse_json

_BLOCK = 1 << 16
_WIDTH = 512
"""Bytes of a lock file with an owner: a renewal writes as many, so that a reader never sees half of it."""
_PROC = Path("/proc")
ORPHAN_SECONDS = 5.0
"""Longest wait for the children of a killed owner, which die with it (`hornbook.run.launch.rank`)."""
RENEW_SECONDS = 5.0
"""Time between two renewals of a lock by its owner."""
LEASE_SECONDS = 60.0
"""An owner on another machine that does not renew its lock for so long is taken for dead."""
SETTLE_SECONDS = 2 * RENEW_SECONDS
"""Wait after a lock was taken over: an owner that lives, or another process that took it over too, shows by then."""
SERVER_SECONDS = 120.0
"""Longest wait for a file server to drop the flock of a machine that is gone: a lease of NFS is 90 s."""
LOCAL_DISKS = ("apfs", "bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "hfs", "overlay", "tmpfs", "xfs", "zfs")
"""File systems that one machine has to itself: whoever locks a file there is seen."""
_CHECK_SECONDS = 1.0
_POLL_SECONDS = 0.5


_REMEDY = "if no process uses the run, delete the file and start again"


class _Owner(FileRecord):
    """The owner in the lock file: `process_identity`, since when, and a number that grows with every renewal."""

    host: str = ""
    pid: Annotated[int, Field(ge=0, lt=2**31)] = 0
    boot: str = ""
    started: str = ""
    since: Annotated[float, Field(ge=0, lt=1e11)] = 0.0
    beat: Annotated[int, Field(ge=0, lt=2**53)] = 0


class RunLock:
    """Ownership of a run directory: an flock, and a file that names the owner.

    The system releases the flock of a killed process. Processes of one kernel, and whoever uses a local disk, see the
    flocks of each other: there a second process gets an InUseError that names the owner, at once. Over a network file
    system an flock may be invisible.
    An owner on another machine is refused, unless its lock `expires`: it renews that every RENEW_SECONDS,
    and whoever wants it watches, by its own clock alone. If the lock is renewed, InUseError; if it is not for
    LEASE_SECONDS, it is taken over, and a line on stderr says so. An owner that could not run for so long learns it
    from `RunDir.check`, before it writes more.

    `shared`: forked children keep the flock too, so that the run is owned while any of them lives. Children of a killed
    owner die within moments; taking the lock waits for that. Such an owner, which may have no threads, calls `renew`
    itself; otherwise a thread does.
    """

    def __init__(self, run: RunDir, *, shared: bool = False, expires: bool = False) -> None:
        self._run, self._path, self._shared, self._expires = run, run.lock, shared, expires
        self._file = -1
        self._owner: dict[str, Any] = {}
        self._beat, self._renewed, self._checked = 0, 0.0, 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.previous: dict[str, Any] | None = None
        """The owner found on entry that did not release the lock (it was killed), else None."""

    def __enter__(self) -> Self:
        try:
            self.previous = self._acquire()
            self._owner = process_identity(os.getpid()) | {"since": time.time()}
            self._write()
            if self.previous and not self._is_seen(self.previous):
                self._settle()
        except BaseException:
            self._drop()
            raise
        self._run.guards.append(self.check)
        if not self._shared:
            os.register_at_fork(after_in_child=self._drop)
        if self._expires and not self._shared:
            self._thread = threading.Thread(target=self._keep_renewing, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self.check in self._run.guards:
            self._run.guards.remove(self.check)
        if self._file >= 0:
            with suppress(OSError, IntegrityError):
                if self._is_mine(self._peek()):
                    os.ftruncate(self._file, 0)
            self._drop()

    def renew(self) -> None:
        """Show other machines that the owner lives; RENEW_SECONDS after the last time, else nothing.

        What fails is tried again at the next call: others wait LEASE_SECONDS.
        """
        if self._file < 0 or not self._expires or time.monotonic() - self._renewed < RENEW_SECONDS:
            return
        with suppress(OSError, IntegrityError):
            if self._is_mine(self._peek()):
                self._beat += 1
                # Closing brings the bytes to a server; a sync would wait for all that a disk has to write.
                with open(self._path, "r+b", buffering=0) as file:
                    file.write(self._text())
                self._renewed = time.monotonic()

    def check(self) -> None:
        """Raise TakenOverError if another process has taken the lock over; looks once a second at most."""
        if self._file < 0 or time.monotonic() - self._checked < _CHECK_SECONDS:
            return
        with storage_errors(self._path):
            found, released = self._peek(), self._is_released()
        if released or (found and not self._is_mine(found)):
            taker = f"by {_describe(found)}" if found else "by a process that has ended since"
            raise TakenOverError(
                f"{self._path.parent} was taken over {taker}, while this process did not run or did not reach the file "
                f"system for {LEASE_SECONDS:g} s; it ended, and the run goes on there"
            )
        self._checked = time.monotonic()

    def _is_released(self) -> bool:
        """Whether an owner emptied the file at its end: while this process holds the lock, another one did."""
        try:
            return self._path.stat().st_size == 0
        except FileNotFoundError:
            return False  # a person deleted it

    def _acquire(self) -> dict[str, Any] | None:
        """Lock the file, and wait until its owner is gone or known to live; returns the owner that was found."""
        started, watched = time.monotonic(), None
        while True:
            with storage_errors(self._path):
                held = self._flock()
            owner, seconds = self._read(), time.monotonic() - started
            if not owner or self._is_seen(owner):
                if held:
                    return owner
                if not owner or is_alive(owner) is not False or seconds > ORPHAN_SECONDS:
                    self._refuse(owner, "stop it first, or use another folder")
                time.sleep(0.05)
                continue
            watched = watched or self._watch(owner)
            if owner != watched:
                self._refuse(owner, "which lives on another machine; stop it first, or use another folder")
            if held and seconds > LEASE_SECONDS:
                return owner
            if seconds > LEASE_SECONDS + SERVER_SECONDS:
                self._refuse(owner, "which is silent, but the file server still holds its flock; start again later")
            time.sleep(_POLL_SECONDS)

    def _is_seen(self, owner: Mapping[str, Any]) -> bool:
        """Whether the owner, if it lives, holds an flock that is seen here."""
        return _seen_here(owner) or _is_local(self._path)

    def _watch(self, owner: dict[str, Any]) -> dict[str, Any]:
        if "beat" not in owner:
            self._refuse(
                owner, f"on another machine, where it cannot be seen whether it lives; if not, delete {self._path}"
            )
        _say(f"{self._path} names {_describe(owner)}; waiting {LEASE_SECONDS:g} s to see whether it lives")
        return owner

    def _settle(self) -> None:
        """Wait until an owner that lives after all, or another process that took the lock over, would have shown."""
        assert self.previous
        time.sleep(SETTLE_SECONDS)
        found = self._read()
        if not self._is_mine(found):
            self._refuse(found, "which took it over at the same time; start again later, or use another folder")
        _say(f"took over {self._path.parent} from {_describe(self.previous)}, silent for {LEASE_SECONDS:g} s")

    def _refuse(self, owner: dict[str, Any] | None, why: str) -> NoReturn:
        name = _describe(owner) if owner else "another process"
        comma = "," if why.startswith(("which", "on")) else ";"
        raise InUseError(f"{self._path.parent} is in use by {name}{comma} {why}")

    def _keep_renewing(self) -> None:
        while not self._ended.wait(RENEW_SECONDS / 4):
            self.renew()

    def _flock(self) -> bool:
        """Whether the file that the path names now is locked (a person may delete it while we wait)."""
        if self._file < 0:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(self._file).st_ino == os.stat(self._path).st_ino:
                return True
        self._drop()
        return False

    def _peek(self) -> dict[str, Any] | None:
        """The owner that the path names; None if there is none. Opened anew: so a network file system asks its server.

        Raises OSError, IntegrityError.
        """
        try:
            with open(self._path, "rb", buffering=0) as file:
                text = file.read(_BLOCK)
        except FileNotFoundError:
            return None
        try:
            owner = parse_json(text)
        except InvalidJson:
            return None
        return as_record(owner, self._path, _Owner, _REMEDY).model_dump(exclude_unset=True)

    def _read(self) -> dict[str, Any] | None:
        """The owner; None if the file is empty or torn. Raises IntegrityError if its content is of no owner."""
        with storage_errors(self._path):
            return self._peek()

    def _is_mine(self, owner: Mapping[str, Any] | None) -> bool:
        return bool(owner) and {**owner, "beat": 0} == {**self._owner, "beat": 0}

    def _text(self) -> bytes:
        beat = {"beat": self._beat} if self._expires else {}
        return f"{json.dumps(self._owner | beat):<{_WIDTH - 1}}\n".encode()

    def _write(self) -> None:
        """Write in place: a rename would leave the flock on a file without a name."""
        try:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, self._text(), 0)
            os.fsync(self._file)
        except OSError as error:
            raise storage_error(error, self._path) from error
        self._renewed = time.monotonic()

    def _drop(self) -> None:
        """Close the file and leave its content; in a forked child the lock stays with the parent."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _say(text: str) -> None:
    if not os.environ.get("HORNBOOK_QUIET"):
        with suppress(OSError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


def _seen_here(owner: Mapping[str, Any]) -> bool:
    """Whether the owner runs under this kernel, where its flock is seen (in a container too, whatever its name)."""
    boot = _boot_id()
    return owner.get("boot") == boot if boot else owner.get("host") == socket.gethostname()


def _is_local(path: Path) -> bool:
    """Whether a file is on a disk that no other machine uses; False where it cannot be known."""
    import psutil

    folders = {path.resolve(), *path.resolve().parents}
    with suppress(OSError, psutil.Error):
        found = [each for each in psutil.disk_partitions(all=True) if Path(each.mountpoint) in folders]
        newest_first = reversed(found)  # of several mounts at one place the newest hides the others
        return bool(found) and max(newest_first, key=lambda each: len(each.mountpoint)).fstype in LOCAL_DISKS
    return False


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
    import psutil

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
