"""Stacks that hanging ranks wrote (`incidents/ATTEMPT/rank-N.txt`): in which collective a rank waits, at which line."""

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hornbook.files.filesystem import is_folder, list_folder

_THREAD = re.compile(r"^(Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$")
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+) in (?P<function>\S+)$')
_RANK = re.compile(r"rank-(\d+)\.txt")
_COLLECTIVES = re.compile(
    r"^(all_reduce|all_gather\w*|reduce_scatter\w*|broadcast\w*|barrier|all_to_all\w*|gather|scatter|send|recv|isend"
    r"|irecv|wait|batch_isend_irecv|monitored_barrier)$"
)
_ESCAPE = re.compile(r"\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|U([0-9a-f]{8}))")
"""How faulthandler writes a character beyond ASCII."""
_WAIT = re.compile(r"\.wait\(\)")
_PACKAGE = Path(__file__).parents[2]


@dataclass(frozen=True)
class Frame:
    """A line of a stack."""

    file: str
    line: int
    function: str

    @property
    def own(self) -> str:
        """Path within the package, "" of others' code.

        The stack may be from another machine, and a folder above the package may have its name. So a file is ours
        where a file of this package has the path that follows a folder `hornbook`.
        """
        parts = Path(self.file).parts
        inner = (Path(*parts[i + 1 :]) for i, part in enumerate(parts[:-1]) if part == _PACKAGE.name)
        return next((str(path) for path in inner if (_PACKAGE / path).is_file()), "")

    @property
    def code(self) -> str:
        """The line of code; "" where the file is not there."""
        return linecache.getline(self.file, self.line).strip()


@dataclass(frozen=True)
class RankStack:
    """The thread of a rank that runs the loop."""

    rank: int
    frames: tuple[Frame, ...]
    """Innermost first."""

    @property
    def collective(self) -> str:
        """What it waits in: `all_reduce`, "a collective" where its stack does not tell which; "" if in none."""
        found = [each for each in self.frames if "/distributed/" in each.file and _COLLECTIVES.match(each.function)]
        if found:
            return found[-1].function
        last = self.frames[0] if self.frames else None  # one that was begun before: its wait is no frame of Python
        return "a collective" if last and last.own.startswith("parallel/") and _WAIT.search(last.code) else ""

    @property
    def where(self) -> Frame | None:
        """The innermost line of this package."""
        return next((each for each in self.frames if each.own), None)

    def __str__(self) -> str:
        frame = self.where or (self.frames[0] if self.frames else None)
        if frame is None:
            return f"rank {self.rank}: no stack"
        doing = f"waits in {self.collective}" if self.collective else f"is in {self.frames[0].function}"
        line = f"{frame.own or frame.file}:{frame.line} ({frame.function})"
        return f"rank {self.rank} {doing}, {line}" + (f": {frame.code}" if frame.code else "")


def read_stacks(incident: Path) -> list[RankStack]:
    """Of every rank whose file in the folder of an incident holds a stack, by rank."""
    files = list_folder(incident, "rank-*.txt") if is_folder(incident) else []
    found = []
    for path in files:
        match = _RANK.fullmatch(path.name)
        frames = parse_stacks(path.read_text(encoding="utf-8", errors="replace"))
        if match is not None and frames:
            found.append(RankStack(int(match[1]), tuple(frames)))
    return sorted(found, key=lambda each: each.rank)


def parse_stacks(text: str) -> Sequence[Frame]:
    """Frames of the thread that runs the loop, of a dump of faulthandler."""
    threads: list[list[Frame]] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            threads.append([])
        elif (match := _FRAME.match(line)) and threads:
            file = _ESCAPE.sub(lambda found: chr(int(found[found.lastindex or 0], 16)), match["file"])
            threads[-1].append(Frame(file, int(match["line"]), match["function"]))
    return max(threads, key=_is_loop, default=[])


def _is_loop(frames: Sequence[Frame]) -> tuple[int, int]:
    own = [each for each in frames if each.own]
    return sum(each.own == "run/loop/training_loop.py" for each in own), len(own)
