"""The planner against our own runs on this CPU: predicted and measured peak memory and step time by configuration.

    python -m benchmarks.plan.runs [NAME...] [--report]

Each configuration is a run of `hornbook train` over random tokens; it is measured once, and kept in the results as soon
as it is, so that a benchmark that was cut goes on. The prediction is made anew each time, from the rates that `hornbook
bench` measured here. Where other processes share the machine they lengthen steps, so the time of a step is that of the
quickest tenth, or the processor time of a step where that is less: a rank computes with one thread, and does not spin
while it waits. A CPU's six constants (`hornbook.plan.update_work`, `device_rates`) were fitted on the decoders and
encoders of one machine; encoder-decoders, experts, windows and latent attention were held out. How often results of
low-rank products count (`HOLES` of `hornbook.plan.planned_memory`) was chosen in view of the runs of adapters, so these
are not.
"""

import argparse
import contextlib
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.report import RESULTS, table, write
from hornbook.files.journal import read_records
from hornbook.files.run_directory import RunDir
from hornbook.plan.devices.hardware import Cluster, this_cluster
from hornbook.plan.planner import estimate_layout, vocabulary
from hornbook.plan.search.plan_result import Layout
from hornbook.run.diagnose.bench.synthetic import write_synthetic
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import resolve

WARM_UP = 3
"""First steps, which do not count."""
SAMPLE_SECONDS = 0.02
QUICKEST = 0.1
"""Share of the steps whose slowest counts."""
COMMON = (
    "text.tokenizer.vocab=4096",
    "train.tokens=26624",
    "train.batch_tokens=1024",
    "train.micro_batch=4",
    "train.threads=1",
    "train.ramp.kind=none",
    "eval.every=0",
    "eval.tokens=1024",
    "eval.prompt=",
    "checkpoint.every=0",
    "log.every=1000",
)
FP32, BF16 = "train.precision=fp32", "train.precision=bf16"
BLOCK, SELECTIVE = "parallel.recompute.kind=block", "parallel.recompute.kind=selective"
WIDE, NARROW = ("model.width=512", "model.heads=8"), ("model.width=128", "model.heads=2")
LONG = ("train.sequence=1024", "model.position.length=1024", "train.micro_batch=1")
RANKS = ("parallel.data=2", "train.micro_batch=2")
WINDOWS = 'model.pattern=[{attention = {kind = "full", window = 64}}, {}]'
LORA = 'surgery=["lora"]'
LATENT = ("model.attention.kind=latent", "model.attention.kv_rank=64")
CASES: dict[str, tuple[str, ...]] = {
    "decoder fp32": ("tiny", FP32),
    "decoder bf16": ("tiny", BF16),
    "decoder fp32 block": ("tiny", FP32, BLOCK),
    "decoder bf16 block": ("tiny", BF16, BLOCK),
    "decoder fp32 selective": ("tiny", FP32, SELECTIVE),
    "decoder bf16 selective": ("tiny", BF16, SELECTIVE),
    "decoder fp32 wide": ("tiny", FP32, *WIDE),
    "decoder bf16 wide": ("tiny", BF16, *WIDE),
    "decoder fp32 narrow": ("tiny", FP32, *NARROW),
    "decoder bf16 narrow": ("tiny", BF16, *NARROW),
    "decoder fp32 long": ("tiny", FP32, *LONG),
    "decoder bf16 long": ("tiny", BF16, *LONG),
    "decoder fp32 few rows": ("tiny", FP32, "train.micro_batch=1"),
    "decoder bf16 few rows": ("tiny", BF16, "train.micro_batch=1"),
    "decoder fp32 vocabulary": ("tiny", FP32, "text.tokenizer.vocab=16384"),
    "decoder bf16 vocabulary": ("tiny", BF16, "text.tokenizer.vocab=16384"),
    "decoder fp32 two ranks": ("tiny", FP32, *RANKS),
    "decoder bf16 two ranks": ("tiny", BF16, *RANKS),
    "decoder fp32 zero-3": ("tiny", FP32, *RANKS, "parallel.shard=everything"),
    "decoder fp32 tensor": ("tiny", FP32, "parallel.tensor=2"),
    "neox fp32": ("tiny-neox", FP32),
    "neox bf16": ("tiny-neox", BF16),
    "encoder fp32": ("tiny-bert", FP32),
    "encoder bf16": ("tiny-bert", BF16),
    "encoder fp32 block": ("tiny-bert", FP32, BLOCK),
    "modern encoder fp32": ("tiny-modernbert", FP32),
    "modern encoder bf16": ("tiny-modernbert", BF16),
    "encoder two ranks": ("tiny-bert", FP32, *RANKS),
    "encoder-decoder fp32": ("tiny-t5", FP32),
    "encoder-decoder bf16": ("tiny-t5", BF16),
    "encoder-decoder fp32 block": ("tiny-t5", FP32, BLOCK),
    "bart fp32": ("tiny-bart", FP32),
    "bart bf16": ("tiny-bart", BF16),
    "experts fp32": ("tiny-mixtral", FP32),
    "experts bf16": ("tiny-mixtral", BF16),
    "experts fp32 block": ("tiny-mixtral", FP32, BLOCK),
    "windows fp32": ("tiny", FP32, WINDOWS),
    "windows bf16": ("tiny", BF16, WINDOWS),
    "latent experts fp32": ("tiny-mixtral", FP32, *LATENT),
    "latent experts bf16": ("tiny-mixtral", BF16, *LATENT),
    "lora fp32": ("tiny", FP32, LORA),
    "lora bf16": ("tiny", BF16, LORA),
    "lora fp32 wide": ("tiny", FP32, *WIDE, LORA),
    "prompt fp32": ("tiny", FP32, 'surgery=["prompt"]', "model.position.length=512"),
}
"""Name -> recipe and settings."""
FITTED = ("tiny", "tiny-neox", "tiny-bert", "tiny-modernbert")
"""Recipes that constants were fitted on."""
FEW = tuple(name for name in CASES if name.count(" ") == 1 or "block" in name)
"""Configurations that show causes; `--few` runs these alone."""


def is_held_out(name: str) -> bool:
    """Whether no constant was fitted on a configuration, or chosen in view of it."""
    target, *words = CASES[name]
    return target not in FITTED or WINDOWS in words or LATENT[0] in words


def recipe_of(name: str) -> Recipe:
    """The recipe of a configuration, without data."""
    target, *words = CASES[name]
    return resolve(target, (*COMMON, *words), environ={}).recipe


def measure(name: str) -> dict[str, Any]:
    """Train, and read what the run recorded."""
    recipe = recipe_of(name)
    with tempfile.TemporaryDirectory(prefix="hornbook-") as folder:
        write_synthetic(recipe, Path(folder) / "data")
        run = RunDir(Path(folder) / "run")
        target, *words = CASES[name]
        command = [sys.executable, "-m", "hornbook.cli.main", "train", target, "--data", f"{folder}/data"]
        command += ["--out", str(run.path), *COMMON, *words]
        used = train(command)
        steps = list(read_records(run.metrics))[WARM_UP:]
        records = [each for each in read_records(run.events) if each["kind"] == "plan"]
    whole = [each for each in steps if each["step_tokens"] >= recipe.train.batch_tokens]
    times = sorted(each["seconds"] for each in whole)
    wall, computed = times[int(QUICKEST * len(times))], used.seconds(whole[0]["time"], whole[-1]["time"])
    computed /= len(whole) - 1
    return {
        "seconds": min(wall, computed),
        "wall_seconds": wall,
        "median_seconds": statistics.median(times),
        "processor_seconds": computed,
        "peak_bytes": records[-1]["measured_bytes"],
        "steps": len(times),
    }


@dataclass
class Used:
    """Processor time of a rank as it went on, the mean where there are several."""

    samples: list[tuple[float, float]] = field(default_factory=list)
    """(time of the clock, seconds of processor time so far)."""

    def seconds(self, begin: float, end: float) -> float:
        """Between two times of the clock."""
        at, seconds = zip(*self.samples, strict=True)
        first, last = np.interp([begin, end], at, seconds)
        return float(last - first)


def train(command: list[str]) -> Used:
    """Run the command, and watch it."""
    environment, used = {**os.environ, "OMP_NUM_THREADS": "1"}, Used()
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                ranks = watched.children() or [watched]
                used.samples.append((time.time(), sum(_processor_seconds(rank) for rank in ranks) / len(ranks)))
            time.sleep(SAMPLE_SECONDS)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with exit code {process.returncode}")
    return used


def _processor_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def predicted(name: str, cluster: Cluster) -> Layout:
    """What the planner says of a configuration on one thread of this CPU for each rank."""
    recipe = recipe_of(name)
    world = recipe.parallel.world
    return estimate_layout(recipe, vocabulary(recipe), cluster.model_copy(update={"count": world}))


def report(measured: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Print the table; returns figures, with the rates that the device had."""
    cluster, rows, errors = this_cluster(), [], []
    for name, found in measured.items():
        layout = predicted(name, cluster)
        peak, seconds = layout.worst.peak.total, layout.step.total
        errors.append((peak / found["peak_bytes"] - 1, seconds / found["seconds"] - 1))
        sizes = [each / 2**20 for each in (peak, found["peak_bytes"])]
        times = [1e3 * each for each in (seconds, found["seconds"], found["median_seconds"])]
        rows.append([name, *sizes, f"{errors[-1][0]:+.1%}", *times, f"{errors[-1][1]:+.1%}"])
    print(table(["", "MiB said", "measured", "", "ms said", "measured", "median", ""], rows))
    figures: dict[str, Any] = {"device": cluster.device.model_dump(mode="json"), "measured": measured}
    for number, what in enumerate(("memory", "time")):
        sizes = sorted(abs(each[number]) for each in errors)
        median, ninth = statistics.median(sizes), sizes[min(math.ceil(0.9 * len(sizes)), len(sizes)) - 1]
        figures[what] = {"median": median, "p90": ninth, "worst": sizes[-1], "configurations": len(sizes)}
        print(f"{what}: median {median:.1%}, p90 {ninth:.1%}, worst {sizes[-1]:.1%} of {len(sizes)}")
    figures["rows"] = [[each[0], *each[1:]] for each in rows]
    return figures


def main() -> None:
    """Measure what is not yet in the results, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="configurations to measure anew")
    parser.add_argument("--few", action="store_true", help="those that show causes alone")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    wanted = parser.parse_args()
    path = RESULTS / "plan_runs.json"
    known: dict[str, Any] = json.loads(path.read_text())["measured"] if path.exists() else {}
    for name in () if wanted.report else wanted.names or (FEW if wanted.few else CASES):
        if name in wanted.names or name not in known:
            known[name] = measure(name)
            write("plan_runs", {"measured": known})
            print(name, known[name], flush=True)
    write("plan_runs", report({name: known[name] for name in CASES if name in known}))


if __name__ == "__main__":
    main()
