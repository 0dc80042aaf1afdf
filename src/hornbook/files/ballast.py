"""Ballast: a file that holds space on a run's disk, and is deleted when the disk is full.

Then the records of the run, and the checkpoint with which it stops, have room, whoever filled the disk.
"""

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hornbook.errors import StorageError
from hornbook.files.durable import sync_directory, sync_file

FULL = (errno.ENOSPC, errno.EDQUOT)
"""What a system says where there is no space left, or no quota."""
_ZEROS = bytes(1 << 20)
T = TypeVar("T")


def reserve(path: Path, size: int) -> None:
    """Make the file, of `size` bytes that the disk has allocated; 0: delete it. Raises StorageError."""
    try:
        if size == 0:
            path.unlink(missing_ok=True)
            return
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(file, size)
            _allocate(file, size)
            sync_file(file)
        finally:
            os.close(file)
        sync_directory(path.parent)
    except OSError as error:
        release(path)
        free = shutil.disk_usage(path.parent).free
        raise StorageError(
            f"cannot reserve {size:,} bytes (checkpoint.ballast) as {path}: {error.strerror}, {free:,} are free; free "
            "some space, or lower checkpoint.ballast"
        ) from error


def _allocate(file: int, size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
        return
    for place in range(0, size, len(_ZEROS)):
        os.pwrite(file, _ZEROS[: size - place], place)


def release(path: Path) -> bool:
    """Delete the file; whether there was one."""
    try:
        path.unlink()
    except OSError:
        return False
    return True


def is_full(error: StorageError) -> bool:
    """Whether the disk was full."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL


def with_room(path: Path, write: Callable[[], T]) -> T:
    """Write something small; where the disk is full, again without the ballast at `path`. Raises StorageError."""
    try:
        return write()
    except StorageError as error:
        if not is_full(error):
            raise
    release(path)  # another thread may just have done so: the second attempt has its room
    return write()
