"""The equality matrix: every layout of ranks against one process, and what a step costs on two ranks.

    python -m benchmarks.training.layouts [--quick] [--seconds N] [--overhead]

Cells are families x layouts x precisions: 20 steps of tiny models whose sizes divide by nothing
(`tests/parallel/odd.py`), with dropout, clipping that bites, 7 microbatches of unequal weight and tied embeddings, on
forked ranks of one thread. A layout that a recipe would be refused with is told with the reason. Results are written
after each cell; the command goes on where it stopped, and measures cells of earlier code last. `--seconds N` stops it
at the end of the cell that is under way then. `--quick`: two ranks, three steps, float64; nothing is written.
`--overhead`: times alone, of a step of the 13M LLaMA shape, each layout in turn with what it is compared with.
"""

import argparse
import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import xxhash

from benchmarks import report
from benchmarks.contenders.processes import Contender, Process, interleave
from benchmarks.contenders.shapes import SHAPES, make_weights
from tests.parallel.layouts import FIGURES, LAYOUTS, Layout, examine, refusal
from tests.parallel.trajectory import Result, Run, perform
from tests.ranks import RankServer

STEPS = 20
PRECISIONS = ("fp64", "fp32", "bf16")
CELL_SECONDS = 300.0
"""Longest run on ranks."""
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


def begun() -> Figures:
    """What earlier calls have measured."""
    path = report.RESULTS / "layouts.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    return {"steps": STEPS, "cells": found.get("cells", {}), "overhead": found.get("overhead", {})}


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
    """Layout, family and precision of every cell: first those of few ranks, which take seconds, then by precision.

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
    return sorted(found, key=lambda cell: (cell[0].ranks > FEW_RANKS, PRECISIONS.index(cell[2])))


def matrix(figures: Figures, quick: bool, seconds: float) -> bool:
    """Fill in the cells that are missing, then those of earlier code; whether all are of this code."""
    server, begin, source = RankServer(), time.monotonic(), source_digest()
    figures["source"], found = source, figures["cells"]
    named = {
        f"{layout.name} | {family} | {precision}": (layout, family, precision)
        for layout, family, precision in cells(quick)
    }
    for key in found.keys() - named.keys():
        del found[key]
    old = [key for key in named if key in found and found[key]["source"] != source]
    with tempfile.TemporaryDirectory() as folder:
        do = Runs(server, Path(folder))
        try:
            for key in [*(key for key in named if key not in found), *old]:
                if time.monotonic() - begin > seconds:
                    return False
                cell = found[key] = {**measure(do, *named[key], 3 if quick else STEPS), "source": source}
                told = cell["reason"] or {name: f"{cell['difference'][name]:.1e}" for name in FIGURES}
                print(f"{key}: {cell['state']} {told}", flush=True)
                if not quick:
                    report.write("layouts", figures)
        finally:
            server.close()
    return True


# ---- Overhead

SHAPE = SHAPES["13M"]
COMMAND = [sys.executable, "-m", "benchmarks.peers.ranks"]
ALONE: Figures = {"loop": "ours", "world": 1, "threads": 2, "shard": "none", "exact": False, "micro_batch": 8}
PAIR: Figures = ALONE | {"world": 2, "threads": 1, "micro_batch": 4}
ONE = "one process, two threads"
MIXTURE = {"mlp": {"kind": "experts", "count": 8, "active": 2, "hidden": 512}}
EXPERTS = ", mixture of experts"
COPIES, FULLY = "data 2", "ZeRO-3, data 2"
PEERS: dict[str, tuple[str, Figures]] = {
    COPIES: ("torch's DDP", {"loop": "bare"}),
    FULLY: ("torch's fully_shard", {"loop": "bare", "shard": "everything"}),
}
"""Layout -> the plain loop that divides the same."""


def contenders() -> dict[str, Figures]:
    """Every layout of two ranks that is not refused; by name."""
    found: dict[str, Figures] = {}
    for layout in LAYOUTS.values():
        run = layout.run(layout.families[0], "fp32")
        if layout.ranks != 2 or refusal(run):
            continue
        rows = 2 if run.stages > 1 else 4 if run.world * run.expert > 1 else 8
        own = PAIR | {"axes": run.parallel, "micro_batch": rows}
        experts = layout.families == ("experts",)
        found[layout.name + EXPERTS * experts] = own | ({"model": MIXTURE} if experts else {})
    kept = found[FULLY]["axes"] | {"reshard": False}
    exact = found[COPIES]["axes"] | {"exact": True}
    others = {f"{FULLY}, reshard = false": found[FULLY] | {"axes": kept}}
    return found | others | {f"{COPIES}, exact = true": found[COPIES] | {"axes": exact}}


def beside(name: str) -> dict[str, Figures]:
    """What a layout is compared with in its rounds: one process, and a plain loop where one divides the same."""
    found = {ONE: ALONE | ({"model": MIXTURE} if name.endswith(EXPERTS) else {})}
    return found | ({PEERS[name][0]: PAIR | PEERS[name][1]} if name in PEERS else {})


def overhead(precision: str, rounds: int) -> Figures:
    """Seconds of a step, and the median over rounds of how many times as long as the others' it is, by layout.

    Few contenders at a time: each holds a model and its state.
    """
    found: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        spec = {"shape": SHAPE, "precision": precision, **make_weights(Path(folder), SHAPE)}
        for name, own in contenders().items():
            named = {name: own, **beside(name)}
            processes = [Process(Contender(each, COMMAND), spec | settings) for each, settings in named.items()]
            answers = interleave(processes, rounds, 1)
            mine, *others = ([answer["seconds"] for answer in answers[each][1:]] for each in named)
            over = [statistics.median(a / b for a, b in zip(mine, other, strict=True)) for other in others]
            peaks = [answers[each][-1]["peak_bytes"] for each in named]
            found[name] = {
                "seconds": statistics.median(mine),
                "over_one_process": over[0],
                "over_peer": over[1] if over[1:] else None,
                "peak_bytes": peaks[0],
                "peak_over_one_process": peaks[0] / peaks[1],
                "losses": [answers[each][-1]["losses"][-1] for each in named],
            }
            print(f"{precision}, {name}: {over}", flush=True)
    return found


def summary(figures: Figures) -> list[list[object]]:
    """By layout: cells of each state."""
    states = ("equal", "rounds", "differs", "failed", "refused")
    rows = []
    for name in LAYOUTS:
        found = [each["state"] for key, each in figures["cells"].items() if key.startswith(f"{name} | ")]
        rows.append([name, *(found.count(state) for state in states)])
    return [["layout", *states], *rows]


def run(quick: bool = False, seconds: float = float("inf"), timed: bool = True, untimed: bool = True) -> bool:
    """Measure, print, write results/layouts.json; whether no cell differs or failed."""
    figures: Figures = begun() if not quick else {"cells": {}, "overhead": {}}
    done = matrix(figures, quick, seconds) if untimed else True
    header, *rows = summary(figures)
    print(report.table([str(each) for each in header], rows))
    if timed and done:
        rounds = 2 if quick else 7
        figures["overhead"] = {precision: overhead(precision, rounds) for precision in ("fp32", "bf16")[: 2 - quick]}
        for precision, found in figures["overhead"].items():
            columns = ("seconds", "over_one_process", "over_peer", "peak_over_one_process")
            table = [
                [name, *("" if each[key] is None else each[key] for key in columns)] for name, each in found.items()
            ]
            print(report.table([precision, "s a step", "x one process", "x torch's loop", "peak x one's"], table))
    if not quick:
        print(f"written: {report.write('layouts', figures)}")
    if not done:
        print("some cells are missing: call it again")
    return done and all(each["state"] in ("equal", "rounds", "refused") for each in figures["cells"].values())


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.layouts")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--overhead", action="store_true")
    parser.add_argument("--seconds", type=float)
    given = parser.parse_args()
    limited = given.seconds is not None
    kept = run(given.quick, given.seconds if limited else float("inf"), timed=not limited, untimed=not given.overhead)
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
