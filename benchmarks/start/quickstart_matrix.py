"""The quickstart on many machines at once: threads x instruction set x kernel cache x neighbour.

`python -m benchmarks.start.quickstart --matrix` runs the rows that results/quickstart_matrix.json does not have yet,
three minutes each, and writes each as it comes; `--rows 0,5` runs these anew. A cold row begins with an empty folder of
kernels, a warm one with what a demo before it has left there.
"""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.report import RESULTS, machine, table, write
from tests.cpus import AVX2

PATH = RESULTS / "quickstart_matrix.json"
LIMIT_SECONDS = 180
SPIN = "import os, sys\nwhile os.getppid() == int(sys.argv[1]):\n    for _ in range(10**6): pass"
KEPT = ("seconds", "stages", "size", "planned_steps", "steps", "bits_per_byte", "baselines", "resumed_loss_equal")
HEADER = (
    "threads",
    "instructions",
    "kernels",
    "neighbour",
    "seconds",
    "size, steps",
    "bits per byte",
    "unigram",
    "gzip",
)


class Row(NamedTuple):
    """One way to be a machine."""

    threads: int
    instructions: str
    kernels: str
    neighbour: str

    @property
    def name(self) -> str:
        """The key in the file of results."""
        return ", ".join(map(str, self))

    @property
    def folder(self) -> Path:
        """Where kernels of these instructions are kept, away from the user's."""
        return Path(tempfile.gettempdir()) / f"hornbook-kernels-{self.instructions}"

    @property
    def environ(self) -> dict[str, str]:
        """Of the processes of this row."""
        cap = AVX2 if self.instructions == "AVX2" else {}
        cache = {"HORNBOOK_HOME": str(self.folder), "NUMBA_CACHE_DIR": str(self.folder)}
        return os.environ | cap | cache | {"OMP_NUM_THREADS": str(self.threads)}


ROWS = [
    Row(*each) for each in itertools.product((2, 1), ("native", "AVX2"), ("cold", "warm"), ("idle", "two busy loops"))
]


def demo(row: Row, *words: str) -> dict[str, Any]:
    """Figures of one demo."""
    command = [sys.executable, "-m", "hornbook.cli.main", "quickstart", "--json", *words]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=row.environ).stdout)


@contextlib.contextmanager
def neighbours(count: int) -> Iterator[None]:
    """Processes that take all the time they can get; they end with this one."""
    loops = [subprocess.Popen([sys.executable, "-c", SPIN, str(os.getpid())]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(row: Row) -> dict[str, Any]:
    """One row: what the demo says of itself, and how long its process took by this one's clock."""
    if row.kernels == "cold":
        shutil.rmtree(row.folder, ignore_errors=True)
    elif not row.folder.exists():
        demo(row, "--size", "xs")
    row.folder.mkdir(exist_ok=True)
    with neighbours(2 if row.neighbour != "idle" else 0):
        begun = time.monotonic()
        figures = demo(row)
        seconds = time.monotonic() - begun
    facts = {**machine(), **row._asdict()}  # the machine's own instructions; `instructions` are those it shows
    return facts | {key: figures[key] for key in KEPT} | {"seconds": round(seconds, 1)}


def cells(found: dict[str, Any]) -> list[Any]:
    """One row of the table."""
    baselines = found["baselines"]
    gzip = min(baselines["gzip_per_document"], baselines["gzip_concatenated"])
    steps = f"{found['size']}, {found['steps']} of {found['planned_steps']}"
    facts = [found[name] for name in Row._fields]
    return [*facts, found["seconds"], steps, found["bits_per_byte"], baselines["unigram"], gzip]


def read() -> dict[str, Any]:
    """The rows measured so far, by name."""
    return json.loads(PATH.read_text())["rows"] if PATH.exists() else {}


def run(numbers: Sequence[int] | None = None) -> dict[str, Any]:
    """Measure rows: those that are missing, or these."""
    found = read()
    for number, row in enumerate(ROWS):
        if (row.name in found) if numbers is None else (number not in numbers):
            continue
        print(f"row {number}: {row.name}", file=sys.stderr)
        found[row.name] = measure(row)
        write("quickstart_matrix", {"rows": {each.name: found[each.name] for each in ROWS if each.name in found}})
    print(table(HEADER, [cells(each) for each in read().values()]))
    late = [name for name, each in found.items() if each["seconds"] > LIMIT_SECONDS]
    if late:
        print(f"not within {LIMIT_SECONDS} s: {'; '.join(late)}")
    return found
