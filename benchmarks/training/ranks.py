"""Throughput on two ranks: one process of two threads, our ranks of one thread each, and bare loops over torch's own.

Run with `python -m benchmarks.training.ranks`. All contenders take the same global batch of the 13M LLaMA shape from
the same weights, one round each in turn; what counts is the median over rounds of the ratio within a round.
"""

import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report
from benchmarks.contenders.processes import Contender, Process, interleave
from benchmarks.contenders.shapes import SHAPES, make_weights

SHAPE = SHAPES["13M"]
COMMAND = [sys.executable, "-m", "benchmarks.peers.ranks"]
ALONE = {"loop": "ours", "world": 1, "threads": 2, "shard": "none", "exact": False, "micro_batch": 8}
PAIR = ALONE | {"world": 2, "threads": 1, "micro_batch": 4}
CONTENDERS: dict[str, dict[str, Any]] = {
    "one process, two threads": ALONE,
    "ours, whole copies": PAIR,
    "ours, everything cut": PAIR | {"shard": "everything"},
    "ours, whole copies, exact sums": PAIR | {"exact": True},
    "bare DDP": PAIR | {"loop": "bare"},
    "bare fully_shard": PAIR | {"loop": "bare", "shard": "everything"},
}
RATIOS = (
    ("ours, whole copies", "one process, two threads", "goal 0.9"),
    ("ours, everything cut", "one process, two threads", ""),
    ("ours, whole copies", "bare DDP", "goal 1.0"),
    ("ours, everything cut", "bare fully_shard", "goal 1.0"),
    ("ours, whole copies, exact sums", "ours, whole copies", "the cost of exact sums"),
)
"""(speed of, over that of, remark)."""


def speed(precision: str, rounds: int, steps: int) -> dict[str, Any]:
    """Interleaved rounds of all contenders: tokens per second, ratios, last losses."""
    with tempfile.TemporaryDirectory() as folder:
        spec = {"shape": SHAPE, "precision": precision, **make_weights(Path(folder), SHAPE)}
        processes = [Process(Contender(name, COMMAND), spec | own) for name, own in CONTENDERS.items()]
        answers = interleave(processes, rounds, steps)
    tokens = SHAPE["rows"] * SHAPE["sequence"] * steps
    seconds = {name: [answer["seconds"] for answer in found[1:]] for name, found in answers.items()}
    ratios = [
        (a, b, statistics.median(y / x for x, y in zip(seconds[a], seconds[b], strict=True)), remark)
        for a, b, remark in RATIOS
    ]
    return {
        "tokens_per_second": {name: tokens / statistics.median(found) for name, found in seconds.items()},
        "ratios": ratios,
        "last_loss": {name: found[-1]["losses"][-1] for name, found in answers.items()},
    }


def run(quick: bool = False) -> dict[str, Any]:
    """All figures, printed and written to benchmarks/results/ranks.json."""
    rounds, steps = (2, 1) if quick else (7, 2)
    figures: dict[str, Any] = {"shape": SHAPE, "rounds": rounds, "steps_per_round": steps}
    figures["speed"] = {precision: speed(precision, rounds, steps) for precision in ("bf16", "fp32")}
    for precision, found in figures["speed"].items():
        rates = [(name, rate, found["last_loss"][name]) for name, rate in found["tokens_per_second"].items()]
        print(report.table([precision, "tokens/s", "last loss"], rates), "\n")
        print(report.table(["speed of", "over", "x", ""], found["ratios"]), "\n")
    report.write("ranks", figures)
    return figures


if __name__ == "__main__":
    run(quick="--quick" in sys.argv)
