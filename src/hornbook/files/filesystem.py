"""Questions about files that raise an error if the system cannot answer them.

Python's own `exists`, `is_file` and `is_dir` (from 3.14 on) and its `glob`, `rglob` and `walk` (from 3.12 on; before,
if access is denied) answer False or nothing on any error: a failing disk, a network file system that is gone, a folder
that may not be read. A checkpoint listed with them would be published without its weights. Here, on every Python, an
error is raised, and a file is absent only if the system says so.
"""

import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from hornbook.errors import IntegrityError, UsageError, quoted

_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://?([^/].*)?")
_COPIES = {
    "s3": ("aws s3 cp --recursive {url} {local}", "aws s3 cp --recursive {local} {url}"),
    "gs": ("gcloud storage cp -r {url} {local}", "gcloud storage cp -r {local} {url}"),
    "hf": ("hf download OWNER/NAME --local-dir {local}", "hf upload OWNER/NAME {local}"),
    **dict.fromkeys(("http", "https"), ("curl -Lo {local} {url}", "the program of that server")),
}
"""Commands that copy from and to a store, by the scheme of its URLs."""


def exists(path: Path) -> bool:
    """Whether a file or folder is at a path; a dangling link is not. Raises OSError."""
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


def regular_size(path: Path) -> int:
    """Bytes of a regular file (through symlinks, as the hub's cache has them); IntegrityError otherwise."""
    try:
        status = path.stat()
    except OSError as error:
        raise IntegrityError(f"{path}: cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(status.st_mode):
        raise IntegrityError(f"{path}: not a regular file")
    return status.st_size


def list_folder(folder: Path, pattern: str = "*") -> list[Path]:
    """Entries directly in a folder whose names match, sorted, hidden ones too. Raises OSError, also if it is absent."""
    return sorted(folder / name for name in os.listdir(folder) if fnmatchcase(name, pattern))


def walk_files(folder: Path) -> Iterator[Path]:
    """Every entry below a folder that is not a directory; links are not followed. Raises OSError."""
    with os.scandir(folder) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from walk_files(folder / entry.name)
        else:
            yield folder / entry.name


def open_inside(folder: Path, name: str) -> int:
    """Descriptor of a regular file inside `folder`.

    Raises IntegrityError for a name with `..`, an absolute name, a link on the way, a device or a pipe, and OSError
    if the file cannot be opened.
    """
    parts = PurePosixPath(name).parts
    if not parts or name != "/".join(parts) or "\0" in name or name.startswith("/") or ".." in parts:
        raise IntegrityError(f"{name!r} is not a name inside the folder")
    place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # each part is opened below the folder that is open already, so that no link can be put on the way meanwhile
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


def require_local(path: Path | str, *, name: str = "", writes: bool = False) -> str:
    """The path as text. Raises UsageError for a URL, also for a `Path` of one, which has lost a slash.

    name: of the option, for the error. writes: the command writes there.
    """
    match = _URL.fullmatch(str(path))
    # a local folder may be called `s3:`, which only text with both slashes does not name
    if match is None or ("://" not in str(path) and Path(f"{match[1]}:").is_dir()):
        return str(path)
    scheme, inside = match[1].lower(), match[2] or ""
    url, local = f"{scheme}://{inside}", inside.rstrip("/").rpartition("/")[2] or "FOLDER"
    if scheme == "file":
        raise UsageError(f"{name}{url}: leave out file://, and give the path alone: {quoted(f'/{inside}')}")
    command = _COPIES.get(scheme, ("the program of that store",) * 2)[writes]
    if Path(local).suffix:  # one file
        command = re.sub(" (--recursive|-r) ", " ", command)
    command = command.format(url=quoted(url), local=quoted(local))
    advice = f"give {quoted(local)}, and then copy it with" if writes else f"give {quoted(local)}, copied first with"
    raise UsageError(
        f"{name}{url}: only a local path can be {'written' if writes else 'read'} here: {advice}: {command}"
    )


def _is(path: Path, kind: Callable[[int], bool]) -> bool:
    try:
        return bool(kind(os.stat(path).st_mode))
    except ValueError:  # no file can have such a name
        return False
    except OSError as error:
        if error.errno not in _ABSENT:
            raise
        return False
