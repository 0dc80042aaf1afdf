"""What a run would take, before it begins: how much of the data it sees, memory, minutes. Nothing is written.

Where a row is computed within seconds, some microbatches of the run itself are computed, with its own model, data and
precision. Where it is not, matrix products say how fast this machine is (as `hornbook doctor` does), and bytes of state
how much memory is needed at the least.
"""

import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import psutil
import torch

from hornbook.model.build import build_model
from hornbook.model.config.flops import FLOAT32, operations_per_token, state_bytes
from hornbook.model.config.parameter_count import count_parameters
from hornbook.model.init.init import initial_values
from hornbook.model.surgery.operate import trained_parameters
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import PRECISIONS
from hornbook.parallel.world import choose_device, distributed
from hornbook.run.diagnose.doctor import matmul_rate
from hornbook.run.horizon import Horizon
from hornbook.run.job import Inputs
from hornbook.run.start.kernels import compile_for
from hornbook.run.state import State
from hornbook.run.train import build_state, fetch

MICROBATCH_SECONDS = 10.0
"""A microbatch that takes longer is judged by some of its rows."""
FEW = 4
"""Those rows: time and memory of all follow from theirs."""
ROW_SECONDS = 5.0
"""A row that takes longer, by the rate of matrix products, is not computed at all."""
PRODUCTS_SHARE = 0.5
"""Of the rate of matrix products that training reaches, about, where nothing is measured."""
SCORED = 0.35
"""Cost of scoring a token, in tokens of training."""


@dataclass(frozen=True)
class Estimate:
    """What training takes on this machine."""

    device: str
    seconds: float
    """Until the end of the run, evaluations included; without start and saves."""
    tokens_per_second: float
    memory: int
    """Bytes, at the most."""
    free: int
    """Bytes that are there for it now."""
    computed: str
    """What was computed to know this; empty where it follows from products and bytes of state alone."""

    @property
    def fits(self) -> bool:
        """Whether there is memory for it."""
        return self.memory <= self.free

    def to_json(self) -> dict[str, Any]:
        """For `--json`."""
        names = ("device", "seconds", "tokens_per_second", "memory", "free", "fits", "computed")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True)
class _Measured:
    """Seconds of a microbatch and of the rest of a step; bytes of this process at the most."""

    microbatch: float
    update: float
    memory: int
    computed: str


def saved_bytes(inputs: Inputs) -> int:
    """Of a checkpoint: weights and two moments; under an adapter a little more than this, or less."""
    recipe = inputs.recipe
    trained = trained_parameters(recipe.model, inputs.vocab, recipe.surgery)
    return FLOAT32 * (count_parameters(recipe.model, inputs.vocab) + 2 * trained)


def estimate(inputs: Inputs, horizon: Horizon, consumed: int) -> Estimate:
    """What the rest of a run takes after `consumed` tokens.

    Raises UsageError for a device that is not there.
    """
    recipe = inputs.recipe
    device = choose_device(recipe.train.device)
    free = _free(device)
    least = _least_bytes(inputs)
    row = _row_operations(inputs) / (PRODUCTS_SHARE * 1e9 * matmul_rate(device, PRECISIONS[recipe.train.precision]))
    found = _measure(inputs, free) if least <= free and row <= ROW_SECONDS else None
    rows = recipe.train.micro_batch
    if found is None:
        found = _Measured(row * rows, 0.0, least, "")
    ranks = recipe.parallel.data
    microbatches = -(-recipe.train.batch_tokens // recipe.train.sequence // rows)
    step = found.microbatch * microbatches + found.update
    rate = recipe.train.batch_tokens / step * (1 if device.type == "cpu" else ranks)  # of a CPU, ranks share the cores
    seconds = (horizon.tokens - consumed + SCORED * _scored(inputs, horizon, consumed)) / rate
    seconds = min(seconds, recipe.train.seconds or seconds)
    memory = found.memory * (ranks if device.type == "cpu" else 1)
    return Estimate(str(device), seconds, rate, memory, free, found.computed)


def _row_operations(inputs: Inputs) -> float:
    model, sequence = inputs.recipe.model, inputs.recipe.train.sequence
    return sequence * sum(each.total for each in operations_per_token(model, inputs.vocab, sequence).values())


def _least_bytes(inputs: Inputs) -> int:
    """Weights, gradients and moments that one process holds."""
    recipe = inputs.recipe
    total, trained = (
        count_parameters(recipe.model, inputs.vocab),
        trained_parameters(recipe.model, inputs.vocab, recipe.surgery),
    )
    return sum(state_bytes(trained, recipe.parallel).values()) + FLOAT32 * max(total - trained, 0)


def _scored(inputs: Inputs, horizon: Horizon, consumed: int) -> int:
    """Tokens of validation that are scored on the way and, all of them, at the end."""
    sizes = [stream.tokens for stream in inputs.corpus.validation.values()]
    every, steps = inputs.recipe.eval.every, horizon.steps_from(consumed)
    times = steps // every if every else 0
    return times * sum(min(size, inputs.recipe.eval.tokens) for size in sizes) + sum(sizes)


def _free(device: torch.device) -> int:
    """Bytes of memory that the device has for a process; of a CPU's, what this process holds already counts too."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return psutil.virtual_memory().available + psutil.Process().memory_info().rss


def _peak(device: torch.device) -> int:
    """Bytes that this process held at the most so far."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _measure(inputs: Inputs, free: int) -> _Measured:
    """Compute an update, some rows, then a microbatch where there is time and memory for it."""
    recipe, rows = inputs.recipe, inputs.recipe.train.micro_batch
    few = min(rows, FEW)
    compile_for(inputs)
    with distributed(ParallelConfig(), recipe.train) as world:
        state = build_state(inputs, ParallelConfig(), world)
        state.fill(initial_values(build_model(recipe.model, inputs.vocab, "meta"), recipe.model, recipe.seed))
        _forward_backward(state, inputs, 1)
        _update(state, recipe.optim.clip)  # moments are there from here on
        _forward_backward(state, inputs, min(few, 2))
        two = _peak(world.device)
        seconds, computed = _timed(lambda: _forward_backward(state, inputs, few)) / few * rows, f"{few} rows"
        memory = _peak(world.device) + (rows - few) * (_peak(world.device) - two) // max(few - 2, 1)
        copy = saved_bytes(inputs) if recipe.checkpoint.background and world.device.type == "cpu" else 0
        if seconds <= MICROBATCH_SECONDS and memory + copy <= free:
            seconds = min(_timed(lambda: _forward_backward(state, inputs, rows)) for _ in range(3))
            memory, computed = _peak(world.device), "a microbatch"
        return _Measured(seconds, _timed(lambda: _update(state, recipe.optim.clip)), memory + copy, computed)


def _forward_backward(state: State, inputs: Inputs, rows: int) -> None:
    batch = inputs.loader.index.batch(np.arange(rows, dtype=np.int64), rows)
    losses = state.engine.forward_backward(batch.batches, batch.total_weight, key=(inputs.recipe.seed, 0))
    fetch(losses["loss"])


def _update(state: State, clip: float) -> None:
    norm = state.engine.clip_gradients(clip)
    fetch(norm, state.engine.step(state.optimizer))
    state.engine.zero_gradients()


def _timed(act: Callable[[], None]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun
