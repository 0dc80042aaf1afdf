"""How long a dry run of one rank of 1,024 takes: a step of a 70B model on fake tensors, on this machine alone.

    python -m benchmarks.plan.trace [--times N]

Each is `hornbook train llama-3-8b --world 1024 --rank 0 --dry-run` with the shape of Llama 3 70B (arXiv 2407.21783,
table 3) in a process of its own, its start and imports included; the best of N counts. It computes with one thread, so
that on a machine that does other work the processor's time is what it takes. The goal is 60 seconds.
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

from benchmarks.report import table, write

WORLD = 1024
SHAPE = (
    "model.layers=80",
    "model.width=8192",
    "model.heads=64",
    "model.attention.kv_heads=8",
    "model.mlp.hidden=28672",
    "model.vocab=128256",
    "train.sequence=8192",
    "train.batch_tokens=16Mi",
    "train.ramp.kind=none",
    "train.micro_batch=1",
    "train.precision=bf16",
    "parallel.tensor=8",
    "parallel.sequence=true",
)
LAYOUTS = {
    "zero-3 x 128, tensor 8": ("parallel.data=128", "parallel.shard=everything"),
    "zero-1 x 32, tensor 8, pipeline 4 (1f1b)": (
        "parallel.data=32",
        "parallel.shard=optimizer",
        "parallel.pipeline.stages=4",
    ),
    "zero-1 x 16, tensor 8, pipeline 8 (interleaved)": (
        "parallel.data=16",
        "parallel.shard=optimizer",
        'parallel.pipeline={stages = 8, schedule = "interleaved", chunks = 2}',
    ),
}


def dry_run(words: tuple[str, ...]) -> dict[str, Any]:
    """The command's answer, with its seconds from start to end."""
    command = [sys.executable, "-m", "hornbook", "train", "llama-3-8b", "--world", str(WORLD), "--rank", "0"]
    begin, before = time.perf_counter(), _processor_seconds()
    answer = subprocess.check_output([*command, "--dry-run", "--json", *SHAPE, *words], stderr=subprocess.DEVNULL)
    used = _processor_seconds() - before
    return {**json.loads(answer), "elapsed": time.perf_counter() - begin, "processor": used}


def _processor_seconds() -> float:
    """Of all child processes so far."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    """Trace all layouts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=2)
    options = parser.parse_args()
    rows = []
    for name, words in LAYOUTS.items():
        ran = [dry_run(words) for _ in range(options.times)]
        best = min(ran, key=lambda each: each["processor"])
        sent = sum(each["count"] for each in best["collectives"])
        sizes = [best["parameters"], best["peak"] / 2**30, sent, best["microbatches"]]
        rows.append([name, *sizes, best["processor"], best["elapsed"]])
        print(rows[-1], flush=True)
    header = ["layout", "parameters", "GiB", "collectives", "microbatches", "s of CPU", "s"]
    print(table(header, rows))
    write("plan_trace", {"header": header, "rows": rows, "world": WORLD})


if __name__ == "__main__":
    main()
