"""Damage to what a save left, from outside: the same cases for every side."""

import os
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.reliability.peers.sides import Side


class NotThere(Exception):
    """The side has nothing of the kind."""


Act = Callable[[Side, Path], None]
"""Does it to a run."""


def _file(side: Side, run: Path, role: str) -> Path:
    if role not in side.files:
        raise NotThere(f"no {role} of its own" if len(set(side.files.values())) > 1 else "one file holds all")
    return run / side.newest / side.files[role] if side.files[role] else run / side.newest


def _largest(path: Path, *, last: bool) -> tuple[int, int]:
    """Begin and bytes of a tensor in a file of torch's: the first or last one of those of the largest size."""
    with zipfile.ZipFile(path) as archive:
        members = [each for each in archive.infolist() if "/data/" in each.filename]
        size = max(each.file_size for each in members)
        chosen = [each for each in members if each.file_size == size][-1 if last else 0]
    raw = path.read_bytes()[chosen.header_offset :][:30]
    begin = chosen.header_offset + 30 + int.from_bytes(raw[26:28], "little") + int.from_bytes(raw[28:30], "little")
    return begin, size


def _values(side: Side, run: Path, role: str) -> tuple[Path, int, int]:
    """A file, and where in it numbers of weights or moments are."""
    path = _file(side, run, role)
    if zipfile.is_zipfile(path):
        return path, *_largest(path, last=role == "moments")  # which are saved behind the weights
    size = path.stat().st_size
    return path, size // 2 // 4 * 4, size - size // 2


def truncate(role: str) -> Act:
    """The second half of the file is gone."""

    def act(side: Side, run: Path) -> None:
        path = _file(side, run, role)
        os.truncate(path, path.stat().st_size // 2)

    return act


def flip(role: str) -> Act:
    """One bit of one number is another one: the lowest of its exponent."""

    def act(side: Side, run: Path) -> None:
        path, begin, size = _values(side, run, role)
        place = begin + size // 2 // 4 * 4 + 2
        with path.open("r+b") as file:
            file.seek(place)
            byte = file.read(1)[0]
            file.seek(place)
            file.write(bytes([byte ^ 0x80]))

    return act


def zero_tail(role: str) -> Act:
    """The last part of the numbers was never written: what a power cut leaves of a file that had its size."""

    def act(side: Side, run: Path) -> None:
        path, begin, size = _values(side, run, role)
        with path.open("r+b") as file:
            file.seek(begin + size // 2)
            file.write(bytes(size - size // 2))

    return act


def remove(role: str) -> Act:
    """The file is gone."""

    def act(side: Side, run: Path) -> None:
        path = _file(side, run, role)
        if not side.files[role]:
            raise NotThere("one file holds all")
        path.unlink()

    return act


def empty(side: Side, run: Path) -> None:
    """Of the newest checkpoint there is but its name."""
    path = run / side.newest
    if path.is_dir():
        shutil.rmtree(path)
        path.mkdir()
    else:
        path.write_bytes(b"")


def stale(side: Side, run: Path) -> None:
    """Beside it is a half-written one, under a temporary name."""
    path, copy = run / side.newest, run / side.stale
    if path.is_file():
        copy.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
        return
    shutil.copytree(path, copy)
    weights = copy / side.files["weights"]
    os.truncate(weights, weights.stat().st_size // 2)


def nothing(side: Side, run: Path) -> None:
    """None: the process was killed between two saves."""
    del side, run


DAMAGE: dict[str, Act] = {
    "killed between two saves": nothing,
    "weights: file cut in half": truncate("weights"),
    "weights: one bit flipped": flip("weights"),
    "weights: tail of zeros": zero_tail("weights"),
    "moments: file cut in half": truncate("moments"),
    "moments: one bit flipped": flip("moments"),
    "moments: tail of zeros": zero_tail("moments"),
    "moments: file missing": remove("moments"),
    "scheduler: file missing": remove("scheduler"),
    "random state: file missing": remove("random state"),
    "clock: file missing": remove("clock"),
    "newest checkpoint empty": empty,
    "half-written one under a temporary name": stale,
}
FULL_DISK = "disk full in the second save"


def bytes_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())


def small_disk(path: Path, size: int) -> bool:
    """Mount a disk of so many bytes; whether this is allowed here."""
    path.mkdir(parents=True)
    words = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


def enlarge(path: Path) -> None:
    """Make room."""
    subprocess.run(["mount", "-o", "remount,size=1g", str(path)], check=True)


def unmount(path: Path) -> None:
    """Take the disk away."""
    subprocess.run(["umount", str(path)], check=True)
