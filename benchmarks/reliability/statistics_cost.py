"""Cost of the statistics of layers (`log.statistics_every`), beside steps of the same process: A B A B ...

    python -m benchmarks.reliability.statistics_cost [--rounds N]

A is a step, B a step that is measured, both with the loop's own `take_step`, on random tokens. `measurement` is the
median of B over that of A, less one; `share` is that at the default interval: what training slows down by.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import report
from hornbook.files.run_directory import RunDir
from hornbook.parallel.world import distributed
from hornbook.run.diagnose.bench.synthetic import write_synthetic
from hornbook.run.job.inputs import load_kernels, open_inputs
from hornbook.run.job.job import Start, silent_job
from hornbook.run.layers.statistics import LayerStatistics
from hornbook.run.ledger.interventions import Course
from hornbook.run.loop.train import build_state, take_step
from hornbook.settings.resolve import Resolved, resolve
from hornbook.settings.training import LogConfig

EVERY = LogConfig().statistics_every
WARM_UP = 3
MODELS = {
    "tiny, 4.3M": ("tiny", "train.tokens=1G", "eval.every=0"),
    "8 layers of width 512, 34M": (
        "tiny",
        "model.layers=8",
        "model.width=512",
        "model.heads=8",
        "train.batch_tokens=8192",
        "train.tokens=1G",
    ),
}
"""Recipe and settings by name."""


def measure(words: tuple[str, ...], rounds: int) -> dict[str, Any]:
    """Median seconds of a step and of a measured step, and what follows."""
    with tempfile.TemporaryDirectory() as temporary:
        resolved = resolve(words[0], words[1:], environ={})
        recipe = write_synthetic(resolved.recipe, Path(temporary) / "data")
        inputs = open_inputs(Resolved(recipe, {}))
        run = RunDir(Path(temporary) / "run").create()
        with distributed(recipe.parallel, recipe.train) as world:
            load_kernels(inputs.recipe.model, recipe.train, inputs.vocab)
            state = build_state(inputs, recipe.parallel, world)
            state.fill(inputs.initial_values())
            layers = LayerStatistics(state.engine, 1)
            job, course = silent_job(inputs, run, Start(quiet=True)), Course(inputs.resolved, inputs.length)

            def step(*, measured: bool) -> float:
                state.layers, started = layers if measured else None, time.perf_counter()
                take_step(job, state, course)
                if measured:
                    layers.measure(state.loader, state.micro_batch)
                return time.perf_counter() - started

            for _ in range(WARM_UP):
                step(measured=True)
            pairs = [(step(measured=False), step(measured=True)) for _ in range(rounds)]
        inputs.loader.close()
    plain, measured = (statistics.median(column) for column in zip(*pairs, strict=True))
    cost = measured / plain - 1
    seconds = {"step_seconds": plain, "measured_step_seconds": measured}
    return {**seconds, "measurement": cost, "every": EVERY, "share": cost / EVERY, "rounds": rounds}


def main() -> None:
    """Measure each model, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    found = {name: measure(words, rounds) for name, words in MODELS.items()}
    for name, each in found.items():
        print(
            f"{name}: a measurement is {100 * each['measurement']:.0f} % of a step of {each['step_seconds']:.3f} s, "
            f"{100 * each['share']:.2f} % of training at every {each['every']} steps"
        )
    print(report.write("statistics_cost", {"models": found}))


if __name__ == "__main__":
    main()
