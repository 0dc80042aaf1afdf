"""What the guard costs a step: steps with it and without in turn, in one process."""

import math
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import torch

from benchmarks.reliability.guard.rules import Ours
from hornbook.files.run_directory import RunDir
from hornbook.parallel.world import distributed
from hornbook.run.checkpoints.state import State
from hornbook.run.diagnose.bench.synthetic import write_synthetic
from hornbook.run.guard.guard import Guard, Seen
from hornbook.run.job.job import Job, Start, silent_job
from hornbook.run.job.run_inputs import load_kernels, open_inputs
from hornbook.run.ledger.interventions import Course
from hornbook.run.loop.async_checkpointer import AsyncCheckpointer
from hornbook.run.loop.guard_recovery import Recovery, open_guard
from hornbook.run.loop.training_loop import build_state, take_step
from hornbook.run.observe.observers import Observers
from hornbook.settings.resolve import Resolved, resolve

MODELS: dict[str, str] = {
    "width 64, 256 tokens a step": "model.layers=1 model.width=64 model.heads=2 train.sequence=64"
    " train.batch_tokens=256 train.micro_batch=4",
    "tiny, 4.3M": "",
    "8 layers of width 512, 34M": "model.layers=8 model.width=512 model.heads=8 train.batch_tokens=8192",
}
"""Name -> settings of the recipe `tiny`."""
WARM_UP = 3


def cost(seconds: float) -> dict[str, Any]:
    """Of each model, measured for so many seconds each."""
    return {
        "threads": torch.get_num_threads(),
        "host_microseconds": host(),
        "models": {name: _measure(words.split(), seconds) for name, words in MODELS.items()},
    }


def host(steps: int = 4_000) -> float:
    """Microseconds of the guard alone, at a step."""
    ours, draw = Ours(), random.Random(3)
    rows = [(draw.gauss(2.2, 0.03), math.exp(draw.gauss(-1.8, 0.15))) for _ in range(2 * steps)]
    for row in rows[:steps]:
        ours.fires(*row)
    started = time.perf_counter()
    for row in rows[steps:]:
        ours.fires(*row)
    return (time.perf_counter() - started) / steps * 1e6


def _measure(words: list[str], seconds: float) -> dict[str, Any]:
    """Median seconds of a step without and with the guard, and the median of what each pair differs by."""
    with tempfile.TemporaryDirectory() as temporary:
        resolved = resolve("tiny", [*words, "train.tokens=1G", "eval.every=0"], environ={})
        recipe = write_synthetic(resolved.recipe, Path(temporary) / "data")
        inputs = open_inputs(Resolved(recipe, {}))
        run = RunDir(Path(temporary) / "run").create()
        with distributed(recipe.parallel, recipe.train) as world:
            load_kernels(inputs.recipe.model, recipe.train, inputs.vocab)
            state = build_state(inputs, recipe.parallel, world)
            state.fill(inputs.initial_values())
            job, course = silent_job(inputs, run, Start(quiet=True)), Course(inputs.resolved, inputs.length)
            pairs = _pairs(job, state, course, seconds)
        inputs.loader.close()
    plain, guarded = (statistics.median(column) for column in zip(*pairs, strict=True))
    differences = [b - a for a, b in pairs]
    share = statistics.median(differences) / plain
    error = 1.2533 * statistics.stdev(differences) / math.sqrt(len(pairs)) / plain
    return {"seconds": {"off": plain, "safe": guarded}, "share": share, "error": error, "rounds": len(pairs)}


def _pairs(job: Job, state: State, course: Course, seconds: float) -> list[tuple[float, float]]:
    """Seconds of a step without and with the guard, one after the other, either first."""
    saver, observers = cast(AsyncCheckpointer, None), cast(Observers, None)  # nothing is decided here
    recovery = Recovery(job, state, saver, observers)

    def step(guard: Guard | None) -> float:
        state.guard, started = guard, time.perf_counter()
        recovery.after(take_step(job, state, course), course)
        return time.perf_counter() - started

    last = [take_step(job, state, course) for _ in range(WARM_UP)][-1]
    guard = open_guard(job)
    assert guard is not None
    _fill(guard, last.loss, last.grad_norm)
    step(guard)
    assert guard.limits(10**6) is not None
    pairs, until = list[tuple[float, float]](), time.monotonic() + seconds
    while time.monotonic() < until or len(pairs) < 20:
        order = (None, guard) if len(pairs) % 2 else (guard, None)
        taken = {each: step(each) for each in order}
        pairs.append((taken[None], taken[guard]))
    return pairs


def _fill(guard: Guard, loss: float, norm: float) -> None:
    """Give it the history of a run at this level."""
    draw = random.Random(5)
    for number in range(1, 2_001):
        usual = loss * math.exp(draw.gauss(0, 0.1)), norm * math.exp(draw.gauss(0, 0.3))
        list(guard.judge(Seen(number, *usual, applied=True, in_a_row=0, clock=number - 1, rows=1)))
