"""Steps that are made for real: on fake tensors, which hold shapes and no values, or of a small model on this machine.

This module imports torch, and only the child process of a measurement imports this module.
"""

import time
from typing import Any

from hornbook.model.config.saved_bytes import saved_bytes
from hornbook.parallel.config import ParallelConfig
from hornbook.plan.counts.share import rows_of
from hornbook.plan.planner import vocabulary
from hornbook.run.diagnose.calibrate import training_step
from hornbook.run.diagnose.simulate import Simulation, simulate
from hornbook.run.observe.memory_log import SavedWatch
from hornbook.settings.recipe import Recipe

REPEATS = 3
"""Timed steps; the fastest counts."""


def traced(recipe: Recipe, rank: int = 0) -> Simulation:
    """A step of one rank on fake tensors, by the trainer's own code."""
    train = recipe.train.model_copy(update={"device": "cpu"})
    return simulate(recipe.model_copy(update={"train": train}), vocabulary(recipe), rank)


def kept_and_seconds(recipe: Recipe) -> tuple[int, int, float]:
    """(bytes kept for backward as planned, as measured, seconds) of a step of a recipe with one microbatch."""
    vocab, recompute = vocabulary(recipe), recipe.parallel.recompute
    planned = saved_bytes(recipe.model, vocab, rows_of(recipe, recipe.train.micro_rows), recompute).total
    engine, step = training_step(recipe.model, vocab, recipe.train, ParallelConfig(recompute=recompute))
    watch: Any = SavedWatch(engine.model)
    with watch.watching(engine.model):
        step()
    seconds = list[float]()
    for _ in range(REPEATS):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return planned, watch.peak, min(seconds)
