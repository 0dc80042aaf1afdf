"""The equality matrix: every layout of ranks against one process, and what a step costs on two ranks.

    python -m benchmarks.training.layouts [--quick] [--seconds N] [--overhead]

Cells are families x layouts x precisions: 20 steps of tiny models whose sizes divide by nothing
(`tests/parallel/odd.py`), with dropout, clipping that bites, 7 microbatches of unequal weight and tied embeddings, on
forked ranks of one thread. A layout that a recipe would be refused with is told with the reason. Results are written
after each cell; the command goes on where it stopped, unless the code has changed since. `--seconds N` stops it at the
end of the cell that is under way then. `--quick`: two ranks, three steps, float64; nothing is written. `--overhead`:
times alone, of a step of the 13M LLaMA shape, all contenders in turn: torch's wrappers, and DeepSpeed and torchtitan
where `BENCH_DEEPSPEED` and `BENCH_TORCHTITAN` name their folders (`benchmarks/peers/ranks_*.py` say how to make them).
ColossalAI 0.5.0 is not among them: it does not run without a GPU.
"""

import argparse
import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import xxhash

from benchmarks import report
from benchmarks.contenders import peers_here
from benchmarks.contenders.processes import Answers, Contender, Process, interleave
from benchmarks.contenders.shapes import SHAPES, make_weights
from benchmarks.training.layouts_page import peers_of
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
    """What an earlier call has measured with this code."""
    path, digest = report.RESULTS / "layouts.json", source_digest()
    found = json.loads(path.read_text()) if path.exists() else {}
    cells = found.get("cells", {}) if found.get("source") == digest else {}
    return {"source": digest, "steps": STEPS, "cells": cells, "overhead": found.get("overhead", {})}


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
    """Fill in the cells that are missing; whether all are there."""
    server, begin = RankServer(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        do = Runs(server, Path(folder))
        try:
            for layout, family, precision in cells(quick):
                key = f"{layout.name} | {family} | {precision}"
                if figures["cells"].get(key, {"state": "refused"})["state"] != "refused":
                    continue
                if time.monotonic() - begin > seconds:
                    return False
                found = figures["cells"][key] = measure(do, layout, family, precision, 3 if quick else STEPS)
                told = found["reason"] or {name: f"{found['difference'][name]:.1e}" for name in FIGURES}
                print(f"{key}: {found['state']} {told}", flush=True)
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
FULLY = "ZeRO-3, data 2"
DEGREES = {"data_parallel_shard_degree": 1, "tensor_parallel_degree": 2}
TENSOR: Figures = {"loop": "torchtitan", "micro_batch": 8}
LOSSES_APART = {"fp32": 1e-3, "bf16": 0.02}
"""By precision: most that losses of contenders may differ, nats."""
PEERS: dict[str, list[tuple[str, Figures]]] = {
    "data 2": [("torch's DDP", {"loop": "bare"}), ("DeepSpeed", {"loop": "deepspeed", "stage": 0})],
    "ZeRO-1, data 2": [("DeepSpeed", {"loop": "deepspeed", "stage": 1})],
    "ZeRO-2, data 2": [("DeepSpeed", {"loop": "deepspeed", "stage": 2})],
    FULLY: [
        ("torch's fully_shard", {"loop": "bare", "shard": "everything"}),
        ("DeepSpeed", {"loop": "deepspeed", "stage": 3}),
        ("torchtitan", {"loop": "torchtitan", "degrees": {"data_parallel_shard_degree": 2}}),
    ],
    "tensor 2": [("torchtitan", TENSOR | {"degrees": DEGREES | {"enable_sequence_parallel": False}})],
    "tensor 2 + sequence": [("torchtitan", TENSOR | {"degrees": DEGREES})],
}
"""Layout -> loops that divide the same: plain ones, and those of libraries."""


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
    return found | {f"{FULLY}, reshard = false": found[FULLY] | {"axes": kept}}


def missing(loop: str) -> str:
    """Why the library of a loop is not there; "": it is, or the loop needs none."""
    return peers_here.find(loop).missing if loop in peers_here.PEERS else ""


def beside(name: str) -> Iterator[dict[str, Figures]]:
    """What a layout is compared with: one process and two loops that divide the same, for each two that are here."""
    alone = {ONE: ALONE | ({"model": MIXTURE} if name.endswith(EXPERTS) else {})}
    here = [(peer, PAIR | own) for peer, own in PEERS.get(name, []) if not missing(own["loop"])]
    for begin in range(0, max(len(here), 1), 2):
        yield alone | dict(here[begin : begin + 2])


def answers_of(named: Mapping[str, Figures], spec: Figures, rounds: int) -> Answers:
    """Of all contenders in turn; RuntimeError where their losses show that they do not train the same."""
    contenders = {name: Contender(name, COMMAND, home=home_of(own["loop"])) for name, own in named.items()}
    answers = interleave([Process(each, spec | named[name]) for name, each in contenders.items()], rounds, 1)
    losses = {name: found[-1]["losses"][-1] for name, found in answers.items()}
    if max(losses.values()) - min(losses.values()) > LOSSES_APART[spec["precision"]]:
        raise RuntimeError(f"losses differ: {losses}")
    return answers


def home_of(loop: str) -> str:
    """The folder of a library that is not installed."""
    return peers_here.find(loop).home if loop in peers_here.PEERS else ""


def measure_layout(name: str, own: Figures, spec: Figures, rounds: int) -> Figures:
    """Seconds of a step, and the median over rounds of how many times as long as the others' it is."""
    found: Figures = {"over_peers": {}, "losses": {}}
    for others in beside(name):
        answers = answers_of({name: own, **others}, spec, rounds)
        seconds = {each: [answer["seconds"] for answer in given[1:]] for each, given in answers.items()}
        over = {
            each: statistics.median(a / b for a, b in zip(seconds[name], seconds[each], strict=True)) for each in others
        }
        found["over_one_process"] = over.pop(ONE)
        found["over_peers"] |= over
        found["losses"] |= {each: given[-1]["losses"][-1] for each, given in answers.items()}
        found["seconds"] = statistics.median(seconds[name])
        found["peak_bytes"] = answers[name][-1]["peak_bytes"]
        found["peak_over_one_process"] = found["peak_bytes"] / answers[ONE][-1]["peak_bytes"]
    return found


def overhead(precision: str, rounds: int) -> Figures:
    """What a step of each layout costs. Few contenders at a time: each holds a model and its state."""
    found: Figures = {}
    with tempfile.TemporaryDirectory() as folder:
        spec = {"shape": SHAPE, "precision": precision, **make_weights(Path(folder), SHAPE)}
        for name, own in contenders().items():
            each = found[name] = measure_layout(name, own, spec, rounds)
            print(f"{precision}, {name}: {each['over_one_process']:.3f} {peers_of(each)}", flush=True)
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
        libraries = {own["loop"] for each in PEERS.values() for _, own in each}
        print(*(f"{loop}: {missing(loop)}" for loop in sorted(libraries) if missing(loop)), sep="\n")
        figures["overhead"] = {precision: overhead(precision, rounds) for precision in ("fp32", "bf16")[: 2 - quick]}
        for precision, found in figures["overhead"].items():
            columns = ("seconds", "over_one_process", "peak_over_one_process")
            table = [[name, *(each[key] for key in columns), peers_of(each)] for name, each in found.items()]
            header = [precision, "s a step", "x one process", "peak x one's", "x other loops'"]
            print(report.table(header, table))
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
