"""Files and folders that appear as a whole: written beside, synced, renamed into place, and the rename synced.

A reader sees the old one or the new one, and so does whoever looks after a crash or a power cut. What is not finished
carries the prefix `.tmp-`.
"""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from hornbook.errors import StorageError
from hornbook.files.filesystem import exists, is_own_folder, list_folder, walk_files

TEMPORARY = ".tmp-"
"""Prefix of everything unfinished; whoever holds the lock may delete what carries it."""
_OLD = ".old"
"""Ending of a folder that is being replaced."""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """An OSError in the block becomes the StorageError that says that `path` cannot be written."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


@contextmanager
def _temporary_file(path: Path) -> Iterator[Path]:
    """A name beside `path`; nothing is left under it after the block. Raises StorageError for an OSError in it."""
    temporary = temporary_name(path)
    try:
        with storage_errors(path):
            yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def writing(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """A file that appears under its name, whose folder is made, only when the block ends well. Raises StorageError."""
    with _temporary_file(path) as temporary:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            yield file
            file.flush()
            if sync:
                sync_file(file.fileno())
        publish_file(temporary, path, sync=sync)


def write_atomic(path: Path, data: str | bytes, *, sync: bool = True) -> None:
    """Replace a small file as a whole. Raises StorageError (disk full, read-only): the old file is then still there."""
    with _temporary_file(path) as temporary:
        write_file(temporary, data.encode() if isinstance(data, str) else data, sync=sync)
        publish_file(temporary, path, sync=sync)


def create_atomic(path: Path, data: str) -> bool:
    """Write a small file as a whole unless it is there; True if this call made it. Of concurrent calls one makes it.

    Raises StorageError. On a file system without links the last call makes it.
    """
    with _temporary_file(path) as temporary:
        write_file(temporary, data.encode())
        try:
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError:
            os.replace(temporary, path)
        sync_directory(path.parent)
    return True


def publish_file(temporary: Path, path: Path, *, sync: bool = True) -> None:
    """Rename a file, whose bytes are on disk, into its place. Raises OSError."""
    os.replace(temporary, path)
    if sync:
        sync_directory(path.parent)


@contextmanager
def writing_folder(path: Path, *, synced: bool = False) -> Iterator[Path]:
    """An empty folder to fill, which becomes `path` when the block ends well and vanishes when it does not.

    What an earlier, killed attempt left is deleted. A folder that is at `path` gives way over `path.old`, so that one
    of the two is there at every moment (`clean_folder` ends what a crash interrupted). `synced`: the block itself
    syncs all that it writes. Raises StorageError; an OSError of the block is passed on.
    """
    stage = path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}")
    try:
        with storage_errors(path):
            _remove_litter(path)
            stage.mkdir()
        yield stage
        with storage_errors(path):
            if not synced:
                sync_tree(stage)
            _publish_folder(stage, path)
    finally:
        shutil.rmtree(stage, ignore_errors=True)


def _remove_litter(path: Path) -> None:
    """Delete what killed processes left of a folder at `path`."""
    start = f"{TEMPORARY}{path.name}-"
    with suppress(OSError):
        for litter in list_folder(path.parent, f"{TEMPORARY}*"):
            if litter.name.startswith(start) and litter.name.removeprefix(start).isdecimal():
                shutil.rmtree(litter, ignore_errors=True)


def _publish_folder(stage: Path, path: Path) -> None:
    old = path.with_name(path.name + _OLD)
    replaces = exists(path) and bool(list_folder(path))
    if replaces:
        if exists(old):
            discard(old)
        os.rename(path, old)
    try:
        os.rename(stage, path)  # until here nothing is at `path`; after a crash `clean_folder` renames the old one back
    except OSError:
        if replaces:
            with suppress(OSError):
                os.rename(old, path)
        raise
    sync_directory(path.parent)
    if replaces:
        discard(old)


def discard(folder: Path) -> None:
    """Delete a folder so that nobody ever sees half of it: rename first, then delete. Raises OSError."""
    doomed = folder.with_name(f"{TEMPORARY}del-{folder.name}-{os.getpid()}")
    os.rename(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def clean_folder(parent: Path, pattern: str) -> list[str]:
    """Delete what dead writers left in a folder, and end their replacements of folders whose names match `pattern`.

    Only the owner of the folder may call it. Returns the names that were deleted or renamed. Raises OSError.
    """
    litter = list_folder(parent, f"{TEMPORARY}*")
    for path in litter:
        if is_own_folder(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()
    names = [path.name for path in litter]
    for old in list_folder(parent, pattern + _OLD):
        names.append(old.name)
        new = old.with_name(old.name.removesuffix(_OLD))
        if exists(new):
            discard(old)
        else:
            os.rename(old, new)
    return names


def temporary_name(path: Path) -> Path:
    """A name beside a file that no other writer uses, not even on another host with the same process ids."""
    return path.with_name(f"{TEMPORARY}{path.name}-{os.getpid()}-{os.urandom(4).hex()}")


def write_file(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file under its own name; with `sync`, return when its bytes are on disk. Raises OSError."""
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


def sync_tree(folder: Path) -> None:
    """Return when all files below a folder, and their names, are on disk. Raises OSError."""
    paths = list(walk_files(folder))
    for path in paths:
        with path.open("rb") as file:
            sync_file(file.fileno())
    sync_folders(folder, (path.relative_to(folder) for path in paths))


def sync_folders(folder: Path, names: Iterable[Path]) -> None:
    """Return when the names of files, given relative to `folder`, are on disk: inner folders first. Raises OSError."""
    parents = {parent for name in names for parent in name.parents} | {Path()}
    for parent in sorted(parents, reverse=True):
        sync_directory(folder / parent)


REMEDIES = {
    errno.ENOSPC: "free some space or choose another place",
    errno.EDQUOT: "your quota is spent: free some space or choose another place",
    errno.EROFS: "choose a place that can be written",
    errno.EACCES: "check the permissions or choose another place",
    errno.EPERM: "check the permissions or choose another place",
    errno.EIO: "the device reports errors: check it before you go on",
}
"""What to do about the errors of storage."""


def storage_error(error: OSError, path: Path | None = None) -> StorageError:
    """The error for the user: what the system said, and what to do. path: what could not be written, if it is known."""
    remedy = REMEDIES.get(error.errno or 0, "check the disk")
    name = error.filename or error.filename2
    place = f"cannot write {path}: " if path is not None else f"{os.fsdecode(name)}: " if name is not None else ""
    return StorageError(f"{place}{os.strerror(error.errno) if error.errno else error}; {remedy}")
