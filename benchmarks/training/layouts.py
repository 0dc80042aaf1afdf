"""The equality matrix: every layout of ranks against one process.

    python -m benchmarks.training.layouts [--quick] [--seconds N]

Cells are families x layouts x precisions: 20 steps of tiny models whose sizes divide by nothing
(`tests/parallel/odd.py`), with dropout, clipping that bites, 7 microbatches of unequal weight and tied embeddings, on
forked ranks of one thread. A layout that a recipe would be refused with is told with the reason. Results are written
after each cell; the command goes on where it stopped, and when no cell is missing measures those of earlier code
again. `--seconds N` stops it at the end of the cell that is under way then. `--quick`: two ranks, three steps, float64;
nothing is written.
"""

import argparse
import functools
import itertools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import xxhash

from benchmarks import report
from tests.parallel.layouts import FIGURES, LAYOUTS, Layout, examine
from tests.parallel.trajectory import Result, Run, perform
from tests.ranks import RankServer

STEPS = 20
PRECISIONS = ("fp64", "fp32", "bf16")
CELL_SECONDS = 1200.0
"""Longest run on ranks: it ends a hang, and a machine that does other work must not reach it."""
FEW_RANKS = 3
ROOT = Path(__file__).parents[2]
SOURCES = ("src/hornbook/model", "src/hornbook/optim", "src/hornbook/parallel")
HARNESS = ("trajectory.py", "odd.py", "layouts.py")
Figures = dict[str, Any]


def source_digest() -> str:
    """Of the code that decides what a cell comes to."""
    paths = [path for folder in SOURCES for path in sorted((ROOT / folder).rglob("*.py"))]
    paths += [ROOT / "tests/parallel" / name for name in HARNESS]
    return xxhash.xxh3_64_hexdigest(b"".join(path.read_bytes() for path in paths))


class Runs:
    """Runs on forked ranks; those of one process are kept."""

    def __init__(self, server: RankServer, folder: Path) -> None:
        self._server, self._folder, self._numbers = server, folder, itertools.count()
        self._kept = functools.cache(self._perform)

    def __call__(self, run: Run) -> Result:
        """What a run came to."""
        return self._kept(run) if run.ranks == 1 else self._perform(run)

    def _perform(self, run: Run) -> Result:
        return perform(self._server, run, self._folder / str(next(self._numbers)), limit=CELL_SECONDS)


def measure(do: Runs, layout: Layout, family: str, precision: str, steps: int) -> Figures:
    """One cell."""
    run = layout.run(family, precision, steps=steps)
    begin = time.perf_counter()
    return {**examine(do, run).tree(), "seconds": round(time.perf_counter() - begin, 1)}


def cells(quick: bool) -> list[tuple[Layout, str, str]]:
    """Layout, family and precision of every cell: by precision, first those of few ranks, which take seconds.

    Models of one family follow one another.
    """
    precisions = ("fp64",) if quick else PRECISIONS
    layouts = [each for each in LAYOUTS.values() if each.ranks == 2 or not quick]
    families = dict.fromkeys(family for each in layouts for family in each.families)
    found = [
        (each, family, precision)
        for precision, family in itertools.product(precisions, families)
        for each in layouts
        if family in each.families
    ]
    return sorted(found, key=lambda cell: (PRECISIONS.index(cell[2]), cell[0].ranks > FEW_RANKS))


def matrix(figures: Figures, quick: bool, seconds: float) -> bool:
    """Measure the cells that are missing or of earlier code; whether all are of this code now."""
    server, begin, source = RankServer(), time.monotonic(), source_digest()
    figures["source"], found = source, figures["cells"]
    named = {
        f"{layout.name} | {family} | {precision}": (layout, family, precision)
        for layout, family, precision in cells(quick)
    }
    for key in found.keys() - named.keys():
        del found[key]
    with tempfile.TemporaryDirectory() as folder:
        do = Runs(server, Path(folder))
        try:
            left = [key for key in named if found.get(key, {}).get("source") != source]
            for key in sorted(left, key=lambda key: key in found):
                if time.monotonic() - begin > seconds:
                    return False
                made = found[key] = {**measure(do, *named[key], 3 if quick else STEPS), "source": source}
                told = made["reason"] or {name: f"{made['difference'][name]:.1e}" for name in FIGURES}
                print(f"{key}: {made['state']} {told}", flush=True)
                if not quick:
                    report.write("layouts", figures)
        finally:
            server.close()
    return True


def summary(figures: Figures) -> list[list[object]]:
    """By layout: cells of each state."""
    states = ("equal", "rounds", "differs", "failed", "refused")
    rows = []
    for name in LAYOUTS:
        found = [each["state"] for key, each in figures["cells"].items() if key.startswith(f"{name} | ")]
        rows.append([name, *(found.count(state) for state in states)])
    return [["layout", *states], *rows]


def run(quick: bool = False, seconds: float = float("inf")) -> bool:
    """Measure, print, write results/layouts.json; whether no cell differs or failed."""
    cells = {} if quick else report.known("layouts").get("cells", {})
    figures: Figures = {"steps": STEPS, "cells": cells}
    done = matrix(figures, quick, seconds)
    header, *rows = summary(figures)
    print(report.table([str(each) for each in header], rows))
    if not quick:
        print(f"written: {report.write('layouts', figures)}")
    if not done:
        print("some cells are missing: call it again")
    return done and all(each["state"] in ("equal", "rounds", "refused") for each in figures["cells"].values())


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.layouts")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    return 0 if run(given.quick, given.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
