"""CPU training throughput and memory: hornbook, its peers, and the bound that the matrix products set.

    python -m benchmarks.training.throughput [--shape 13M] [--precision fp32] [--quick] [--cpu native|avx2]

Shapes are those of `benchmarks.contenders.shapes`; peers are transformers (a plain loop, and its Trainer), litgpt,
nanoGPT and nanochat, where `benchmarks.contenders.peers_here` finds them. The contenders are long-lived processes with
the same initial weights, where they have the same model, and the same batches; hornbook is the run that `hornbook
train` starts. They run one timed step each in turn (A B C A B C ...), and what counts is the median over rounds of the
ratio within a round, so a machine that changes its speed hurts none of them. Where memory is short they run in groups,
hornbook in each. bf16 is measured where the CPU has it, and beyond the smallest shape where it is faster than fp32.

Memory is the largest resident set of each process, and what of it is above weights, gradients and two moments.
"""

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks import cpus, report
from benchmarks.contenders.peers_here import Found, find
from benchmarks.contenders.processes import Answers, Contender, compare, merge, run_beside
from benchmarks.contenders.shapes import SHAPES, Shape, make_data, make_weights
from hornbook.model.layers.precision import bf16_ratio, missing_bf16

BENCHMARKS = Path(__file__).parents[1]
OURS, BOUND = "hornbook", "matrix products alone"
SECONDS = 1080.0
"""Time of a run of all cases on two cores; each has its share of what is left, and two rounds at least."""
ROUNDS = 5
FIRST = "13M"
COLUMNS = ("tokens/s", "hornbook is x", "peak MiB", "above states", "M parameters", "first loss", "last loss")
LEFT_OUT = {("nanochat", "124M"): "its untied head and value embeddings make 394M parameters of this shape"}


def lineup(shape: str, precision: str) -> tuple[list[Contender], dict[str, str], dict[str, str]]:
    """(contenders with hornbook and the bound first, versions of peers, why others are left out)."""
    ours = [sys.executable, "-m", "benchmarks.contenders.hornbook_train"]
    made = [Contender(OURS, ours), Contender(BOUND, [sys.executable, str(BENCHMARKS / "peers" / "bound.py")])]
    if cpus.kind() == "avx2":
        made.append(Contender("hornbook, bf16", ours, precision="bf16"))
    here = Found(sys.executable)
    made += _pair("transformers", "transformers_loop", here)
    if precision == "bf16":  # elsewhere eager attention is never the faster one
        made += _pair("transformers eager attention", "transformers_loop", here, "eager")[1:]
    found = {name: find(name) for name in ("litgpt", "nanoGPT", "nanochat")}
    missing = {name: each.missing for name, each in found.items() if each.missing}
    missing |= {name: why for (name, where), why in LEFT_OUT.items() if where == shape and name not in missing}
    trainer = find("accelerate")
    if trainer.missing:
        missing["transformers Trainer"] = trainer.missing
    else:
        made += _pair("transformers Trainer", "transformers_trainer", here)
    for name in (each for each in found if each not in missing):
        made += _pair(name, f"{name.lower()}_loop", found[name])
    versions = {name: each.version for name, each in found.items() if name not in missing}
    return made, versions, missing


def _pair(name: str, program: str, found: Found, attention: str = "sdpa") -> list[Contender]:
    """A contender, plain and compiled."""
    command = [found.python, str(BENCHMARKS / "contenders" / f"{program}.py")]
    return [
        Contender(name + (" compiled" if compiled else ""), command, attention, compiled, home=found.home)
        for compiled in (False, True)
    ]


def groups(contenders: Sequence[Contender], parameters: int, shape: Shape) -> list[list[Contender]]:
    """Contenders that fit in memory together, hornbook in each, by an estimate of what a process keeps."""
    first, others = contenders[0], contenders[1:]
    tokens = shape["rows"] * shape["sequence"]
    working = tokens * (20 * shape["vocab"] + 160 * shape["layers"] * shape["width"])
    resting = 16 * parameters + 0.3 * working + 8e8
    room = int((0.9 * psutil.virtual_memory().total - 2 * working) / resting) - 1
    count = math.ceil(len(others) / max(room, 1))
    size = math.ceil(len(others) / count)
    return [[first, *others[start : start + size]] for start in range(0, len(others), size)]


def measure(name: str, precision: str, data: str, seconds: float, rounds: int) -> dict[str, Any]:
    """All contenders of a case: rates, ratios, losses, memory, parameters; within `seconds` if two rounds are."""
    shape, until = SHAPES[name], time.monotonic() + seconds
    contenders, versions, missing = lineup(name, precision)
    parts, facts, counts = [], {}, []
    with tempfile.TemporaryDirectory() as folder:
        spec = {"shape": shape, "precision": precision, "data": data, "folder": folder}
        spec |= make_weights(Path(folder), shape)
        parameters = Path(spec["own_weights"]).stat().st_size // 4
        parted = groups(contenders, parameters, shape)
        for number, group in enumerate(parted):
            share = (until - time.monotonic()) / (len(parted) - number)
            needed = [each.name for each in group if each.name in (OURS, BOUND)]
            answers, told, problems = run_beside(group, spec, rounds, time.monotonic() + share, needed)
            facts |= told
            missing |= {each: f"failed: {problem}" for each, problem in problems.items()}
            counts.append(min(len(each) for each in answers.values()) - 1)
            found = compare(answers, shape["rows"] * shape["sequence"])
            parts.append(found | memory(answers, told))
    merged = merge(parts, lambda each: each == OURS)
    merged["parameters"] = {each: told["parameters"] for each, told in facts.items() if "parameters" in told}
    return merged | {"rounds": counts, "versions": versions, "left_out": missing}


def memory(answers: Answers, facts: dict[str, Any]) -> dict[str, dict[str, int]]:
    """Peak of each process, and what of it is above weights, gradients and two moments in float32."""
    peaks = {name: found[-1]["peak_bytes"] for name, found in answers.items() if name != BOUND}
    above = {name: peak - 16 * facts[name]["parameters"] for name, peak in peaks.items()}
    return {"peak_bytes": peaks, "above_states_bytes": above}


def cases(shape: str | None, precision: str | None) -> list[tuple[str, str]]:
    """(shape, precision) of a run: what is asked for, or what this CPU does in sensible time."""
    if precision is not None:
        precisions = {precision: [shape] if shape else list(SHAPES)}
    else:
        cpu = torch.device("cpu")
        native = cpus.kind() == "native" and not missing_bf16(cpu)
        small = [FIRST] if cpus.kind() == "avx2" or (native and bf16_ratio(cpu) < 1) else list(SHAPES)
        everywhere = list(SHAPES) if cpus.kind() == "native" else [FIRST]
        precisions = {"fp32": everywhere, "bf16": small if native else []}
    return [(name, each) for each, names in precisions.items() for name in names if shape in (None, name)]


def known() -> dict[str, Any]:
    """Cases on file that this machine measured: a run of some cases keeps the others."""
    found = report.known(f"throughput{'-avx2' if cpus.kind() == 'avx2' else ''}")
    return {} if "note" in found else found.get("cases", {})


def run(quick: bool = False, shape: str | None = None, precision: str | None = None) -> dict[str, Any]:
    """All cases, each printed and written to benchmarks/results/throughput.json as it is known; quick: one round."""
    wanted, until = cases(shape, precision), time.monotonic() + SECONDS
    figures: dict[str, Any] = {"shapes": SHAPES, "cases": known() if shape or precision else {}}
    with tempfile.TemporaryDirectory() as folder:
        data = make_data(Path(folder))
        for number, (name, each) in enumerate(wanted):
            seconds = (until - time.monotonic()) / (len(wanted) - number)
            found = measure(name, each, data, seconds, 1 if quick else ROUNDS)
            figures["cases"].setdefault(name, {})[each] = found
            show(name, each, found)
            if not quick:
                report.write("throughput", figures)
    return figures


def show(name: str, precision: str, found: dict[str, Any]) -> None:
    """Print one case."""
    print(report.table([f"{name}, {precision}", *COLUMNS], rows(found)), flush=True)
    print(*(f"{each}: {why}" for each, why in found["left_out"].items()), "", sep="\n", flush=True)


def rows(found: dict[str, Any]) -> list[tuple[Any, ...]]:
    """Lines of a table, the fastest first."""
    rates = sorted(found["tokens_per_second"].items(), key=lambda item: -item[1])
    return [
        (
            name,
            rate,
            "" if name == OURS else found["ours_over"][name],
            *(found[key].get(name, 0) / 2**20 or "" for key in ("peak_bytes", "above_states_bytes")),
            found["parameters"].get(name, 0) / 1e6 or "",
            *(found[key][name] or "" for key in ("first_loss", "last_loss")),
        )
        for name, rate in rates
    ]


def main() -> None:
    """Read the options; this CPU as it is, unless another set of rows is asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.training.throughput")
    parser.add_argument("--cpu", choices=cpus.VARIABLES, default=cpus.kind())
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--precision", choices=("fp32", "bf16"))
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args()
    if chosen.cpu == cpus.kind():
        run(chosen.quick, chosen.shape, chosen.precision)
    else:
        cpus.each_cpu("benchmarks.training.throughput", *sys.argv[1:], chosen=chosen.cpu)


if __name__ == "__main__":
    main()
