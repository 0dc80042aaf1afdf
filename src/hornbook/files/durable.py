"""Files that no crash can spoil: written beside, synced, renamed into place.

Whoever wrote something with these and got no error may rely on it after a power cut.
"""

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hornbook.errors import StorageError

TEMPORARY = ".tmp-"
"""Prefix of everything unfinished; whoever holds the lock may delete what carries it."""


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """A name beside `path` to write under and to rename from; nothing is left under it, whatever happens in the block.

    Raises StorageError for what the system says in the block.
    """
    temporary = temporary_name(path)
    try:
        yield temporary
    except OSError as error:
        raise storage_error(error, path) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_atomic(path: Path, data: str | bytes, *, sync: bool = True) -> None:
    """Replace a small file as a whole: a reader sees the old or the new, a crash leaves the old or the new.

    Raises StorageError (disk full, read-only) and then leaves the old file and no litter.
    """
    with unfinished(path) as temporary:
        write_file(temporary, data.encode() if isinstance(data, str) else data, sync=sync)
        os.replace(temporary, path)
        if sync:
            sync_directory(path.parent)


def create_atomic(path: Path, data: str) -> bool:
    """Write a small file as a whole unless it is there; whether it was not. Of processes that do so at once, one does.

    Raises StorageError. Where the file system knows no links, the last one does.
    """
    with unfinished(path) as temporary:
        write_file(temporary, data.encode())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:
            os.replace(temporary, path)
        sync_directory(path.parent)
    return True


def temporary_name(path: Path) -> Path:
    """A name beside a file that no other writer has, be it on another host with the same process ids."""
    return path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{os.urandom(4).hex()}")


def write_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file in its place and, unless told not to, return only when its bytes are on disk. Raises OSError."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(file, view) :]
        if sync:
            sync_file(file)
    finally:
        os.close(file)


def sync_file(descriptor: int) -> None:
    """Return when a file or directory is on disk. Raises OSError.

    macOS: fsync leaves bytes in the drive's own memory, F_FULLFSYNC does not (man 2 fsync). Not every file system
    knows it.
    """
    full_sync = getattr(fcntl, "F_FULLFSYNC", None)
    if full_sync is not None:
        try:
            fcntl.fcntl(descriptor, full_sync)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
    os.fsync(descriptor)


def sync_directory(folder: Path) -> None:
    """Return when the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(descriptor)
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
