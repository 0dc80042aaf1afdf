"""What a measuring process can be asked for (`worker.py`): each function takes a recipe and returns a JSON object."""

import contextlib
import dataclasses
import functools
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from hornbook.errors import UsageError
from hornbook.model.config.flops import StepOperations
from hornbook.model.layers.products import is_widened
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.device import choose_device
from hornbook.run.diagnose.bench.accumulation import compare_accumulation
from hornbook.run.diagnose.bench.step_bench import measure_step, operations_of, whole_step
from hornbook.run.diagnose.bench.synthetic import write_synthetic
from hornbook.run.diagnose.bench.worker import on_ranks
from hornbook.run.job.micro_batch import settle_micro_batch
from hornbook.run.job.run_inputs import Inputs, compile_for, open_inputs, open_loader
from hornbook.run.launch.launcher_env import launcher_rank
from hornbook.run.machine.checks import matmul_rate
from hornbook.run.machine.choose_dtype import describe_precision, settle_precision
from hornbook.run.machine.peak import Peak, known_peak, num_devices
from hornbook.run.machine.rates import DTYPES, measure_machine
from hornbook.run.machine.saved import device_name, machine_file, step_file, write
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved

LEAST_BATCHES = 5
"""Batches that a measurement of the loader makes at the least."""


def machine(recipe: Recipe, folder: str) -> dict[str, Any]:
    """The machine, measured and saved."""
    if recipe.train.threads:
        torch.set_num_threads(recipe.train.threads)
    found = measure_machine(choose_device(recipe.train.device), Path(folder))
    return {**found, "file": _name(write(machine_file(found["device"]), found))}


def step(recipe: Recipe, seconds: float) -> dict[str, Any]:
    """The bill of the recipe's step: on its own data, or on random tokens where it names none."""
    with _inputs(recipe) as (inputs, data):
        bill = _on_all_ranks(inputs, functools.partial(measure_step, inputs, seconds))
    recipe = inputs.recipe
    operations = operations_of(inputs, bill["positions"])
    whole = whole_step(bill, recipe.parallel.shard)
    device = choose_device(recipe.train.device)
    devices = num_devices(device, recipe.parallel.world)
    found = {
        "recipe": recipe.name,
        "device": device_name(device),
        "ranks": recipe.parallel.world,
        "devices": devices,
        "parameters": inputs.parameters,
        "precision": describe_precision(inputs.resolved),
        "data": data,
        "rows": recipe.train.micro_rows,
        "sequence": recipe.train.sequence,
        "batch_tokens": recipe.train.batch_tokens,
        **bill,
        "whole_step": whole,
        "tokens_per_second": recipe.train.batch_tokens / sum(whole.values()),
        "operations": dataclasses.asdict(operations),
        **utilisation(operations, bill["seconds"], _peak(device, recipe.train.precision), devices),
    }
    return {**found, "file": _name(write(step_file(found["device"], recipe), found))}


def loader(recipe: Recipe, seconds: float) -> dict[str, Any]:
    """The rate of the loader alone."""
    with _inputs(recipe) as (inputs, data):
        return {"data": data, **measure_loader(inputs, seconds)}


def accumulation(recipe: Recipe) -> dict[str, Any]:
    """Gradients of one big batch against those of ragged microbatches."""
    alone = recipe.model_copy(update={"parallel": ParallelConfig()})
    with _inputs(alone) as (inputs, data):
        return {"data": data, **compare_accumulation(inputs)}


def utilisation(operations: StepOperations, seconds: float, peak: Peak | None, devices: int) -> dict[str, Any]:
    """MFU by convention and HFU: operations of all ranks over what `devices` devices could do in that time."""
    if peak is None:
        return {"peak": None, "mfu": None, "hfu": None}
    could = peak.rate * devices * seconds
    rates = {"causal": operations.causal / could, "palm": operations.palm / could}
    return {"peak": dataclasses.asdict(peak), "mfu": rates, "hfu": operations.recomputed / could}


def _peak(device: torch.device, precision: str) -> Peak | None:
    """The known peak; on a CPU at least the rate of products now, for the machine may have been busy when it was saved.

    Nothing can be forked behind it.
    """
    known = known_peak(device, precision)
    if device.type == "cuda":
        return known
    kind = "fp32" if is_widened(torch.empty(0, dtype=DTYPES[precision])) else precision
    now = Peak(1e9 * matmul_rate(device, DTYPES[kind]), f"{kind} products measured here")
    return now if known is None or now.rate > known.rate else known


@contextlib.contextmanager
def _inputs(recipe: Recipe) -> Iterator[tuple[Inputs, str]]:
    """The inputs, with every kernel compiled, and what the data is."""
    with tempfile.TemporaryDirectory(prefix="hornbook-") as folder:
        data = "random tokens"
        if recipe.data.path is None:
            recipe = write_synthetic(recipe, Path(folder) / "data")
        else:
            data = recipe.data.path
        if recipe.train.tokens is None and recipe.train.epochs is None:
            recipe = recipe.model_copy(update={"train": recipe.train.model_copy(update={"epochs": 1.0})})
        inputs = open_inputs(settle_micro_batch(settle_precision(Resolved(recipe, {}))))
        compile_for(inputs)
        try:
            yield inputs, data
        finally:
            inputs.loader.close()


def _on_all_ranks(inputs: Inputs, function: Any) -> Any:
    size = inputs.recipe.parallel.world
    if launcher_rank(os.environ) is not None:
        raise UsageError("hornbook bench starts its ranks itself, on this machine: run it without torchrun or srun")
    return function() if size == 1 else on_ranks(size, function)


def _name(path: Path | None) -> str | None:
    return None if path is None else str(path)


def measure_loader(inputs: Inputs, seconds: float) -> dict[str, Any]:
    """Tokens/s of making batches one after the other in one thread, as the loop's own thread does ahead of a step.

    The first batch is apart: it maps shards and compares their checksums. A batch is rank 0's part of the recipe's.
    """
    recipe = inputs.recipe
    path = recipe.data.path
    assert path is not None
    loader = open_loader(recipe, path, prefetch=False)
    rows, ranks = max(recipe.train.batch_tokens // recipe.train.sequence, 1), recipe.parallel.world
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < LEAST_BATCHES + 1 or time.perf_counter() < until:
        begun = time.perf_counter()
        loader.take(rows, 0, ranks)
        times.append(time.perf_counter() - begun)
    quarters = statistics.quantiles(times[1:])
    median, tokens = statistics.median(times[1:]), rows * recipe.train.sequence
    return {
        "device": str(choose_device(recipe.train.device)),
        "batch_tokens": tokens,
        "batches": len(times) - 1,
        "first_seconds": times[0],
        "seconds": median,
        "spread": (quarters[2] - quarters[0]) / median / 2,
        "loader_tokens_per_second": tokens / median,
    }
