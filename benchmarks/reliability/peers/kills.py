"""SIGKILL after the n-th system call of a save that changes its disk, told from outside by strace.

strace delays the entry of every call that can change a file, so a process that is killed as soon as a call is on record
dies before the next one. Calls of all threads count, of Python and of native code alike.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.reliability.peers.sides import EVERY, SAVED, Place, Side, environment

CHANGES = "write,pwrite64,writev,pwritev,rename,renameat,renameat2,mkdir,mkdirat,unlink,unlinkat,rmdir,link,linkat"
CHANGES += ",symlink,symlinkat,ftruncate,truncate,fallocate,fsync,fdatasync,copy_file_range,sendfile"
OPENS = "open,openat,creat"
DELAY_MICROSECONDS = 20_000
LINE = re.compile(r"(\d+)\s+(?:<\.\.\. )?(\w+)(.*)")


@dataclass(frozen=True)
class Call:
    """A system call of a side that changed its disk."""

    name: str
    text: str
    """The call as strace has it."""

    @property
    def words(self) -> str:
        """Its name and its file, below the disk."""
        found = re.findall(r"(?:run|tmp)/[^\s<>\",]*", self.text)
        return f"{self.name} {found[-1]}" if found else self.name


def can_trace() -> bool:
    """Whether strace is there and may trace."""
    probe = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", "/dev/null", "-e", "trace=write"]
    probe += ["-e", "inject=write:delay_enter=1", "true"]
    return shutil.which("strace") is not None and subprocess.run(probe, check=False).returncode == 0


def calls(side: Side, place: Place, stop_after: int | None) -> list[Call]:
    """Start a run and list the calls that changed the disk from the save of `SAVED` to the one after it.

    stop_after: kill the process when so many are on record; None: let it end.
    """
    (place.disk / "tmp").mkdir(parents=True, exist_ok=True)
    begun, ended, found = side.pattern.format(SAVED), side.pattern.format(SAVED + EVERY), list[Call]()
    reading, writing = os.pipe()
    options = ["-f", "--seccomp-bpf", "-qq", "-y", "-s", "0", "-e", "signal=none", "-e", f"trace={CHANGES},{OPENS}"]
    options += ["-e", f"inject={CHANGES}:delay_enter={DELAY_MICROSECONDS}", "-o", f"/dev/fd/{writing}"]
    words = ["strace", *options, *side.command(place, None)]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(words, stdout=quiet, stderr=quiet, env=environment(place), pass_fds=[writing])
    os.close(writing)
    with process, os.fdopen(reading) as log:
        for root, call in changes(log, place.disk):
            if ended in call.text:
                ended = "\0"  # the list is whole; the process goes on to its end
                begun = "\0"
            if found or begun in call.text:
                if begun != "\0":
                    found.append(call)
                if stop_after is not None and len(found) >= stop_after:
                    os.kill(root, signal.SIGKILL)
                    break
    return found


def changes(log: Iterator[str], disk: Path) -> Iterator[tuple[int, Call]]:
    """(id of the traced process, call) of each finished call in strace's words that changed something on the disk."""
    root, waiting = 0, dict[str, str]()
    for line in log:
        if (parts := LINE.match(line)) is None:
            continue
        thread, name, text = parts.groups()
        root = root or int(thread)
        if "<unfinished ...>" in text:
            waiting[thread] = text
            continue
        text = waiting.pop(thread, "") + text
        opens = name in OPENS.split(",")
        if f"{disk}/" in text and "= -1" not in text and (not opens or re.search("O_CREAT|O_WRONLY|O_RDWR", text)):
            yield root, Call(name, text.replace(f"{disk}/", "").strip())
