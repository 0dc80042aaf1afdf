"""What a step costs on two ranks of one thread, beside one process of two threads and other loops on the same ranks.

    python -m benchmarks.training.overhead [--quick] [--precision fp32] [--seconds N]

Every layout of two ranks in turn, of the 13M LLaMA shape, in rounds with what it is compared with: plain loops around
torch's own wrappers, and DeepSpeed and torchtitan where `BENCH_DEEPSPEED` and `BENCH_TORCHTITAN` name their folders
(`benchmarks/peers/ranks_*.py` say how to make them). ColossalAI 0.5.0 did not run on a CPU with torch 2.13. Results are
written after each layout; with `--seconds` the command begins no layout after so long, and goes on there next time.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.contenders import peers_here
from benchmarks.contenders.processes import Answers, Contender, Process, interleave
from benchmarks.contenders.shapes import SHAPES, make_weights
from benchmarks.training.layouts_page import peers_of
from tests.parallel.layouts import LAYOUTS, refusal

ROUNDS = 5
PRECISIONS = ("fp32", "bf16")
Figures = dict[str, Any]
SHAPE = SHAPES["13M"]
COMMAND = [sys.executable, "-m", "benchmarks.peers.ranks"]
ALONE: Figures = {"loop": "ours", "world": 1, "threads": 2, "shard": "none", "exact": False, "micro_batch": 8}
PAIR: Figures = ALONE | {"world": 2, "threads": 1, "micro_batch": 4}
ONE = "one process, two threads"
MIXTURE = {"mlp": {"kind": "experts", "count": 8, "active": 2, "hidden": 512}}
EXPERTS = ", mixture of experts"
COPIES, FULLY = "data 2", "ZeRO-3, data 2"
DEGREES = {"data_parallel_shard_degree": 1, "tensor_parallel_degree": 2}
TENSOR: Figures = {"loop": "torchtitan", "micro_batch": 8}
LOSSES_APART = {"fp32": 1e-3, "bf16": 0.02}
"""By precision: most that losses of contenders may differ, nats."""
PEERS: dict[str, list[tuple[str, Figures]]] = {
    COPIES: [("torch's DDP", {"loop": "bare"}), ("DeepSpeed", {"loop": "deepspeed", "stage": 0})],
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
    exact = found[COPIES]["axes"] | {"exact": True}
    others = {f"{FULLY}, reshard = false": found[FULLY] | {"axes": kept}}
    return found | others | {f"{COPIES}, exact = true": found[COPIES] | {"axes": exact}}


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


def measure(figures: Figures, precision: str, rounds: int, until: float, quick: bool) -> None:
    """Fill in the layouts that are missing. Few contenders at a time: each holds a model and its state."""
    found = figures.setdefault(precision, {})
    with tempfile.TemporaryDirectory() as folder:
        spec = {"shape": SHAPE, "precision": precision, **make_weights(Path(folder), SHAPE)}
        for name, own in contenders().items():
            if name in found or time.monotonic() > until:
                continue
            found[name] = measure_layout(name, own, spec, rounds)
            print(f"{precision}, {name}: {found[name]['over_one_process']:.3f} {peers_of(found[name])}", flush=True)
            if not quick:
                report.write("overhead", figures)


def run(quick: bool = False, precision: str | None = None, seconds: float = float("inf")) -> Figures:
    """Measure, print, write results/overhead.json."""
    until, figures = time.monotonic() + seconds, report.known("overhead") if not quick else {}
    libraries = {own["loop"] for each in PEERS.values() for _, own in each}
    print(*(f"{loop}: {missing(loop)}" for loop in sorted(libraries) if missing(loop)), sep="\n")
    for each in [precision] if precision else PRECISIONS[: 2 - quick]:
        measure(figures, each, 1 if quick else ROUNDS, until, quick)
    return figures


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.overhead")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--precision", choices=PRECISIONS)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = parser.parse_args()
    run(given.quick, given.precision, given.seconds)


if __name__ == "__main__":
    main()
