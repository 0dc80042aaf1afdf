"""Estimates the memory and time of a run before it starts. Writes nothing.

Where a row takes seconds at most, some microbatches of the run are computed, with its own model, data and precision.
Where it takes longer, the time follows from the rate of matrix products (as in `hornbook doctor`), and the least memory
from the bytes of state.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.model.config.flops import FLOAT32, SCORING_COST, operations_per_token, state_bytes
from hornbook.model.config.parameter_count import count_parameters
from hornbook.model.layers.transfer import fetch
from hornbook.model.surgery.operate import trained_parameters
from hornbook.optim.config.clipping_config import AnyClip
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.device import choose_device
from hornbook.parallel.parallelize import PRECISIONS
from hornbook.parallel.world import distributed
from hornbook.plan.counts.held_counts import held_values
from hornbook.plan.devices.hardware import this_cpu
from hornbook.plan.planned_memory import estimate_memory
from hornbook.run.checkpoints.state import State
from hornbook.run.job.run_inputs import Inputs, compile_for
from hornbook.run.ledger.training_length import TrainingLength
from hornbook.run.loop.training_loop import build_state
from hornbook.run.machine.checks import matmul_rate, timed
from hornbook.run.machine.process_memory import free_memory, memory_of
from hornbook.settings.training import TrainConfig

MICROBATCH_SECONDS = 10.0
"""Longest time of a microbatch that is computed whole; of a longer one, PROBE_ROWS are computed."""
PROBE_ROWS = 4
ROW_SECONDS = 5.0
"""Longest time of a row that is computed at all, by the rate of matrix products."""
PRODUCTS_SHARE = 0.5
"""Share of the rate of matrix products that training reaches, where nothing is measured."""


@dataclass(frozen=True)
class Estimate:
    """Memory and time of training on this machine."""

    device: str
    seconds: float
    """Time until the end of the run, with evaluations, without start and saves."""
    tokens_per_second: float
    memory: int
    """Peak in bytes."""
    free: int
    """Bytes that the run may take now."""
    computed: str
    """What was computed: `a microbatch`, `4 rows`; "" for an estimate from products and bytes of state alone."""

    @property
    def fits(self) -> bool:
        """Whether there is enough memory."""
        return self.memory <= self.free

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        names = ("device", "seconds", "tokens_per_second", "memory", "free", "fits", "computed")
        return {name: getattr(self, name) for name in names}


def saved_bytes(inputs: Inputs) -> int:
    """Approximate size of a checkpoint: weights, moments and an average of the weights."""
    recipe = inputs.recipe
    trained = trained_parameters(recipe.model, inputs.vocab, recipe.surgery)
    weights = recipe.train.item_bytes * count_parameters(recipe.model, inputs.vocab)
    trained_again = FLOAT32 * trained if recipe.optim.averages else 0  # the model is the average of them
    return weights + recipe.optim.model_state_bytes(trained) + trained_again + _average_bytes(recipe.train, trained)


def _average_bytes(train: TrainConfig, trained: int) -> int:
    return 0 if train.average.kind == "none" else FLOAT32 * trained


def estimate(inputs: Inputs, length: TrainingLength, consumed: int, spent: float = 0.0) -> Estimate:
    """Memory and time of the rest of a run, after `consumed` tokens and `spent` seconds. UsageError without device."""
    recipe = inputs.recipe
    device = choose_device(recipe.train.device)
    free = free_memory(device)
    least = least_bytes(inputs)
    operations = operations_per_token(recipe.model, inputs.vocab, recipe.train.sequence).values()
    speed = PRODUCTS_SHARE * 1e9 * matmul_rate(device, PRECISIONS[recipe.train.precision])
    row = recipe.train.sequence * sum(each.total for each in operations) / speed
    rows, fits = recipe.train.micro_rows, least <= free and row <= ROW_SECONDS
    microbatch, update, memory, computed = _measure(inputs, free) if fits else (row * rows, 0.0, least, "")
    ranks = recipe.parallel.data_ranks
    microbatches = -(-recipe.train.batch_tokens // recipe.train.sequence // rows)
    step = microbatch * microbatches + update
    rate = recipe.train.batch_tokens / step * (1 if device.type == "cpu" else ranks)  # ranks on a CPU share its cores
    seconds = (length.tokens - consumed + SCORING_COST * _scored(inputs, length, consumed)) / rate
    if recipe.train.seconds is not None:
        seconds = min(seconds, max(recipe.train.seconds - spent, 0.0))
    memory *= recipe.parallel.world if device.type == "cpu" else 1
    return Estimate(str(device), seconds, rate, memory, free, computed)


def least_bytes(inputs: Inputs) -> int:
    """Weights, gradients and moments that one process holds, and what it keeps for backward at once where known."""
    recipe = inputs.recipe
    total = count_parameters(recipe.model, inputs.vocab)
    trained = trained_parameters(recipe.model, inputs.vocab, recipe.surgery)
    held = max(held_values(recipe.model, inputs.vocab, recipe.parallel, recipe.train.sequence))
    held = trained * held // total if recipe.surgery else held
    states = sum(state_bytes(held, recipe.parallel, recipe.optim, recipe.train.item_bytes).values())
    state = states + _average_bytes(recipe.train, trained) + FLOAT32 * max(total - trained, 0)
    try:
        ranks = estimate_memory(recipe, inputs.vocab, this_cpu())
    except UsageError:
        return state
    return state + max(each.kept for each in ranks)


def _scored(inputs: Inputs, length: TrainingLength, consumed: int) -> int:
    """Validation tokens to score: some at every evaluation, and all at the end."""
    sizes = [stream.tokens for stream in inputs.corpus.validation.values()]
    every, steps = inputs.recipe.eval.every, length.steps_from(consumed)
    times = steps // every if every else 0
    return times * sum(min(size, inputs.recipe.eval.tokens) for size in sizes) + sum(sizes)


def _measure(inputs: Inputs, free: int) -> tuple[float, float, int, str]:
    """Compute an update, some rows, then a microbatch where there is time and memory for it.

    Returns the seconds of a microbatch and of the rest of a step, the peak memory of this process, what was computed.
    """
    recipe, rows = inputs.recipe, inputs.recipe.train.micro_rows
    few = min(rows, PROBE_ROWS)
    compile_for(inputs)
    with distributed(ParallelConfig(), recipe.train) as world:
        kept = {name: getattr(recipe.parallel, name) for name in ("recompute", "offload")}
        state = build_state(inputs, ParallelConfig(**kept), world)

        def peak() -> int:
            return memory_of(world.device).peak

        state.fill(inputs.initial_values())
        _forward_backward(state, inputs, 1)
        _update(state, recipe.optim.clip)  # moments are there from here on
        _forward_backward(state, inputs, min(few, 2))
        two = peak()
        seconds, computed = timed(lambda: _forward_backward(state, inputs, few)) / few * rows, f"{few} rows"
        memory = peak() + (rows - few) * (peak() - two) // max(few - 2, 1)
        copy = saved_bytes(inputs) if recipe.checkpoint.background and world.device.type == "cpu" else 0
        if seconds <= MICROBATCH_SECONDS and memory + copy <= free:
            seconds = min(timed(lambda: _forward_backward(state, inputs, rows)) for _ in range(3))
            memory, computed = peak(), "a microbatch"
        return seconds, timed(lambda: _update(state, recipe.optim.clip)), memory + copy, computed


def _forward_backward(state: State, inputs: Inputs, rows: int) -> None:
    batch = inputs.loader.index.batch(np.arange(rows, dtype=np.int64), rows)
    losses = state.engine.forward_backward(batch.batches, batch.total_weight, key=(inputs.recipe.seed, 0))
    fetch(losses["loss"])


def _update(state: State, clip: AnyClip) -> None:
    norm = state.engine.clip_gradients(clip)
    state.engine.step_and_fetch(state.optimizer, norm)
    state.engine.zero_gradients()
