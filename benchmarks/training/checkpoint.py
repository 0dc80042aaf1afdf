"""What a checkpoint costs: the loop's wait, the steps while it is written, and loading it on any number of ranks.

    python -m benchmarks.training.checkpoint            minutes; --quick for a small model and fewer rounds

A model of about 1.5 GB of state (weights and Adam's moments, float32), on one process of two threads and on two ranks
of one thread with everything sharded. Beside hornbook: torch.distributed.checkpoint, blocking and async (on a group
of its own), and blocking torch.save with fsync, in turn, round by round; figures are medians over rounds of the slowest
rank. What hornbook writes is hashed and checked when it is loaded; the others check nothing.
"""

import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report
from tests.ranks import RankServer

CASES = "benchmarks/peers/checkpoints.py"
WAYS = ("hornbook", "dcp.async_save", "dcp.save", "torch.save")
PORTABLE = ("hornbook", "dcp.save")
"""What can be loaded on another number of ranks."""
WORLDS = (1, 2)
LAYOUTS = {"tensor 2": {"tensor": 2}, "pipeline 2": {"pipeline": 2}}
"""Two ranks that divide the model otherwise; torch's own would need its tensors to be DTensors there."""
FULL = {
    "model": {"layers": 12, "width": 768, "heads": 12},
    "vocab": 50304,
    "rows": 4,
    "sequence": 64,
    "steps": 2,
    "rounds": 3,
}
QUICK = FULL | {"model": {"layers": 4, "width": 256, "heads": 4}, "vocab": 8192, "steps": 3, "rounds": 2}
LIMIT_SECONDS = 900.0
Numbers = dict[str, Any]


def measure(server: RankServer, spec: Numbers, folder: Path) -> Numbers:
    """Saves on each world, then loads of what it left, on the same world and the other."""
    found: Numbers = {}
    for world in WORLDS:
        place = spec | {"folder": str(folder / str(world))}
        saved = server(f"{CASES}:saves", world, place, limit=LIMIT_SECONDS)
        same = server(f"{CASES}:loads", world, place | {"load": WAYS}, limit=LIMIT_SECONDS)
        other = server(f"{CASES}:loads", 3 - world, place | {"load": PORTABLE}, limit=LIMIT_SECONDS)
        found[str(world)] = {
            **summary(saved, same, other),
            "load_in_layouts_seconds": {
                name: slowest([rank["hornbook"] for rank in ranks])
                for name, parallel in LAYOUTS.items()
                for ranks in [server(f"{CASES}:loads", 2, place | {"load": ["hornbook"], "parallel": parallel})]
            },
        }
        shutil.rmtree(folder / str(world))
    return found


def summary(saved: list[Numbers], same: list[Numbers], other: list[Numbers]) -> Numbers:
    """Medians over rounds of the slowest rank."""
    copy, step = slowest([rank["copy"] for rank in saved]), slowest([rank["steps"] for rank in saved])
    ways = {}
    for name in WAYS:
        times = {key: [rank["ways"][name][key] for rank in saved] for key in ("held", "durable", "writing")}
        held, durable = slowest(times["held"]), slowest(times["durable"])
        writing = slowest(times["writing"]) if all(times["writing"]) else None
        ways[name] = {
            "held_seconds": held,
            "held_over_memcpy": held / copy,
            "durable_seconds": durable,
            "step_while_writing_over_step": writing and writing / step,
            "load_seconds": slowest([rank[name] for rank in same]),
            "load_on_the_other_world_seconds": slowest([rank[name] for rank in other]) if name in PORTABLE else None,
        }
    return {
        "bytes": sum(rank["bytes"] for rank in saved),
        "memcpy_seconds": copy,
        "step_seconds": step,
        "ways": ways,
    }


def slowest(ranks: list[list[float]]) -> float:
    """Median over rounds of the largest over ranks."""
    return statistics.median(max(times) for times in zip(*ranks, strict=True))


def table(world: str, found: Numbers) -> str:
    """One world as text."""
    rows = [[name, *("" if value is None else value for value in way.values())] for name, way in found["ways"].items()]
    header = ["", "loop held s", "x memcpy", "durable s", "step x while writing", "load s", "load elsewhere s"]
    facts = f"{found['bytes'] / 1e9:.2f} GB, memcpy {found['memcpy_seconds']:.3f} s, step {found['step_seconds']:.3f} s"
    facts += f"; load in layouts s: {found['load_in_layouts_seconds']}"
    return f"{world} rank{'s' * (world != '1')}: {facts}\n{report.table(header, rows)}\n"


def run(quick: bool = False) -> Numbers:
    """Measure, print the tables, write results/checkpoint.json."""
    spec, server = QUICK if quick else FULL, RankServer()
    try:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(server, spec, Path(folder))
    finally:
        server.close()
    for world, each in found.items():
        print(table(world, each))
    figures = {"spec": spec, "worlds": found}
    if not quick:
        report.write("checkpoint", figures)
    return figures


if __name__ == "__main__":
    run(quick="--quick" in sys.argv)
