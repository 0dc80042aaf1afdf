"""The folder of compiled kernels: one file per kernel and signature, written atomically; its size is bounded.

It is `$NUMBA_CACHE_DIR/hornbook` where that is named, else `$HORNBOOK_HOME/kernels` where that is, else
`$XDG_CACHE_HOME/hornbook/kernels` (`~/.cache/hornbook/kernels`); installing hornbook again leaves it unchanged.
Kernels that cannot be written there go to the user's own folder among the temporary files. Both are read, so kernels
may come with a read-only image.
"""

import contextlib
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from hornbook.errors import StorageError
from hornbook.files.durable import TEMPORARY, write_atomic
from hornbook.files.user_folder import user_folder

MOST_BYTES = 128 * 2**20
"""Beyond this the least recently used kernels are deleted; all of hornbook's take some 10 MB."""
_DAY = 86400.0
_SUM_BYTES = 16


def folders() -> Iterator[Path]:
    """Where kernels may lie, the preferred folder first."""
    if named := os.environ.get("NUMBA_CACHE_DIR"):
        yield Path(named) / "hornbook"
    elif (own := user_folder("kernels")) is not None:
        yield own
    yield _temporary() / "kernels"


def read(name: str) -> bytes | None:
    """The data of a name (`CPU/KERNEL`); None where there are none, or they are damaged."""
    for folder in folders():
        path = folder / name
        with contextlib.suppress(OSError):
            if _is_foreign(folder):
                continue
            data = path.read_bytes()
            if data[:_SUM_BYTES] == _checksum(data[_SUM_BYTES:]):
                _mark_used(path)
                return data[_SUM_BYTES:]
    return None


def write(name: str, data: bytes) -> bool:
    """Write data under a name in the first folder that can be written; returns whether one could."""
    for folder in folders():
        with contextlib.suppress(OSError, StorageError):
            _make(folder)
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomic(folder / name, _checksum(data) + data, sync=False)
            _prune(folder)
            return True
    return False


def names(cpu: str) -> set[str]:
    """Names of all kernels for a CPU."""
    known = set[str]()
    for folder in folders():
        with contextlib.suppress(OSError):
            if not _is_foreign(folder):
                known.update(f"{cpu}/{name}" for name in os.listdir(folder / cpu))
    return known


def _temporary() -> Path:
    """A folder of this user's among the temporary files."""
    return Path(tempfile.gettempdir()) / f"hornbook-{os.getuid()}"


def _make(folder: Path) -> None:
    """Make a folder; OSError where others could write into it, for what lies there is run."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if _is_foreign(folder):
        raise PermissionError(f"{folder} belongs to another user")


def _is_foreign(folder: Path) -> bool:
    """Whether a folder is among the temporary files and not this user's alone."""
    if folder.parent != _temporary():
        return False
    status = os.lstat(folder.parent)
    return not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or bool(status.st_mode & 0o022)


def _mark_used(path: Path) -> None:
    """Note the day on which a kernel was last used; where the folder is read-only, nothing is deleted either."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _DAY:
            os.utime(path)


@cache
def _prune(folder: Path) -> None:
    """Delete the least recently used files beyond `MOST_BYTES`, and what crashes left; once per process."""
    files = []
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # another process deletes as well
            state = path.stat()
            if path.name.startswith(TEMPORARY) and time.time() - state.st_mtime > _DAY:
                path.unlink()
            elif stat.S_ISREG(state.st_mode):
                files.append((state.st_mtime, state.st_size, path))
    held = 0
    for _, size, path in sorted(files, reverse=True):
        held += size
        if held > MOST_BYTES:
            path.unlink(missing_ok=True)


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM_BYTES).digest()
