"""What the step bill of a run costs: the time of its own work beside that of a step of a small model.

The work is timed alone, in rounds between steps (A B A B ...): the marks of a step's phases, and the bill of a log
interval of ten steps, as a share of the step. A difference of whole steps with and without it is below their noise.

    python -m benchmarks.training.step_bill
"""

import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import torch

from benchmarks.report import table, write
from hornbook.model.config.model import ModelConfig
from hornbook.parallel.traffic.step_clock import PHASES, StepClock
from hornbook.parallel.world import World
from hornbook.run.diagnose.calibrate import training_step
from hornbook.run.job.inputs import Inputs
from hornbook.run.ledger.step_report import Step
from hornbook.run.observe.step_bill import StepBill
from hornbook.settings.resolve import resolve
from hornbook.settings.training import TrainConfig

ROUNDS, REPEATS, EVERY, MICROBATCHES, VOCAB = 9, 1000, 10, 4, 4096


def mark(clock: StepClock) -> dict[str, float]:
    """The marks of a step of four microbatches."""
    with clock.phase("data"):
        pass
    for _ in range(MICROBATCHES):
        with clock.phase("forward"):
            pass
        with clock.phase("backward"):
            pass
    with clock.phase("forward"):
        pass
    for _ in range(2):
        with clock.phase("optimizer"):
            pass
    return clock.take()


def seconds_each(act: Callable[[], object], times: int) -> float:
    """Mean time of a call."""
    begun = time.perf_counter()
    for _ in range(times):
        act()
    return (time.perf_counter() - begun) / times


def finished_step(number: int) -> Step:
    """A record as the loop makes it."""
    facts: dict[str, Any] = {"attempt": 1, "loss": 1.0, "grad_norm": 1.0, "lr": 1e-3, "skipped": False}
    facts |= {"token_hash": "", "first_sample": 0, "num_samples": 16, "data_seconds": 0.0, "final": False}
    phases: dict[str, float] = dict.fromkeys(PHASES, 0.1)
    return Step(step=number, tokens=number, step_tokens=4096, seconds=1.0, phases=phases, positions=(4096, 0), **facts)


def measure() -> dict[str, float]:
    """Seconds of a step and of each part of the bill: medians over the rounds."""
    recipe = resolve("tiny", environ={}).recipe
    inputs = cast(Inputs, SimpleNamespace(recipe=recipe, vocab=VOCAB))
    bill = StepBill(inputs, World(torch.device("cpu")), lambda *_: None)
    train = TrainConfig(batch_tokens=1024, sequence=256, device="cpu", precision="fp32")
    step = training_step(ModelConfig(layers=4, width=128, heads=2), VOCAB, train)
    step()
    steps = [finished_step(number) for number in range(1, EVERY + 1)]
    clock, found = StepClock(), list[tuple[float, float, float]]()

    def interval() -> None:
        for each in steps:
            bill(each)

    for _ in range(ROUNDS):
        marks = seconds_each(lambda: mark(clock), REPEATS)
        found.append((seconds_each(step, 2), marks, seconds_each(interval, REPEATS // EVERY) / EVERY))
    medians = [statistics.median(column) for column in zip(*found, strict=True)]
    return dict(zip(("step", "marks", "bill"), medians, strict=True))


def run() -> None:
    """Measure, print, write."""
    found = measure()
    share = (found["marks"] + found["bill"]) / found["step"]
    rows = [[name, f"{1e6 * seconds:,.1f}"] for name, seconds in found.items()]
    print(table(["part", "microseconds a step"], [*rows, ["share of the step", f"{100 * share:.3f} %"]]))
    write("step_bill", {"seconds": found, "share": share})


if __name__ == "__main__":
    run()
