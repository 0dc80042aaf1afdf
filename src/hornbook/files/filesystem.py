"""What is on disk, where "it is not there" is never a guess.

Python's own `exists`, `is_file` and `is_dir` (from 3.14 on) and its `glob`, `rglob` and `walk` (from 3.12 on; before,
where access is denied) answer "no" and "nothing" when the system could not say: a disk that fails, a network file
system that has gone, a folder that may not be read. A checkpoint listed so would be published without its weights.
Here an error is an error on every Python; only what the system says is absent is absent.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from hornbook.errors import IntegrityError

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


def exists(path: Path) -> bool:
    """Whether something has this name; a link that leads nowhere does not count. Raises OSError."""
    return _is(path, lambda _: True)


def is_file(path: Path) -> bool:
    """Whether it is a regular file, or a link to one. Raises OSError."""
    return _is(path, stat.S_ISREG)


def is_folder(path: Path) -> bool:
    """Whether it is a directory, or a link to one. Raises OSError."""
    return _is(path, stat.S_ISDIR)


def is_own_folder(path: Path) -> bool:
    """Whether it is a directory and no link to one. Raises OSError."""
    return is_folder(path) and not path.is_symlink()


def list_folder(folder: Path, pattern: str = "*") -> list[Path]:
    """Entries directly in a folder whose names match, sorted; hidden ones too. Raises OSError, if it is absent too."""
    return sorted(folder / name for name in os.listdir(folder) if fnmatchcase(name, pattern))


def walk_files(folder: Path) -> Iterator[Path]:
    """Every entry below a folder that is no directory; links are not followed. Raises OSError."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from walk_files(folder / entry.name)
        else:
            yield folder / entry.name


def open_inside(folder: Path, name: str) -> int:
    """Descriptor of a regular file inside `folder`; no `..`, no absolute name, no link on the way, no device or pipe.

    Raises IntegrityError for such names, OSError where the file cannot be opened.
    """
    parts = PurePosixPath(name).parts
    if not parts or name != "/".join(parts) or "\0" in name or name.startswith("/") or ".." in parts:
        raise IntegrityError(f"{name!r} is not a name inside the folder")
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for i, part in enumerate(parts):
            mode = os.stat(part, dir_fd=place, follow_symlinks=False).st_mode
            last = i == len(parts) - 1
            if not (stat.S_ISREG(mode) if last else stat.S_ISDIR(mode)):
                raise IntegrityError(f"{name} is not a regular file")
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            inner = os.open(part, flags if last else flags | os.O_DIRECTORY, dir_fd=place)
            os.close(place)
            place = inner
    except BaseException:
        os.close(place)
        raise
    return place


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return bool(kind(os.stat(path).st_mode))
    except ValueError:  # no file can have such a name
        return False
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return False
