"""Steps that are made for real: on fake tensors, which hold shapes and no values, or of a small model on this machine.

This module imports torch, and only the child process of a measurement imports this module.
"""

import importlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]
from torch.nn import Parameter

from hornbook.model.config.saved_bytes import saved_bytes
from hornbook.model.mlp.experts import Experts
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.world import RankInfo, distributed
from hornbook.plan.counts.share import rows_of
from hornbook.plan.planner import vocabulary
from hornbook.run.diagnose.calibrate import batch_of, training_step
from hornbook.run.diagnose.simulate import Simulation, engine_of, optimizer_of, simulate, state_tensors
from hornbook.run.launch.rank import die_with
from hornbook.run.observe.memory_log import SavedWatch
from hornbook.settings.recipe import Recipe

Place = tuple[float, float]
"""x and y."""
REPEATS = 3
"""Timed steps; the fastest counts."""
SCORED, LEAST_STEPS = 16, 20
"""Microbatches of held-out text; steps that a model makes on the slowest machine too."""


def traced(recipe: Recipe, rank: int = 0) -> Simulation:
    """A step of one rank on fake tensors, by the trainer's own code."""
    train = recipe.train.model_copy(update={"device": "cpu"})
    return simulate(recipe.model_copy(update={"train": train}), vocabulary(recipe), rank)


class RankState(NamedTuple):
    """Bytes that a rank holds after a step, and sends in it."""

    held: dict[str, int]
    """Weights, gradients and moments."""
    sent: dict[str, float]
    """By kind of message, and the axis that it goes over."""


def on_ranks(recipes: Sequence[Recipe]) -> list[list[RankState]]:
    """A step of each recipe's model on processes of this machine, as many for all: what each rank has for each."""
    importlib.import_module("hornbook.parallel.fully_sharded")  # once, not by each fork
    context, size = multiprocessing.get_context("fork"), recipes[0].parallel.world
    with tempfile.TemporaryDirectory() as folder, context.Pool(size, die_with, [os.getpid()]) as pool:
        return pool.starmap(_on_rank, [(recipes, rank, folder) for rank in range(size)], chunksize=1)


def _on_rank(recipes: Sequence[Recipe], rank: int, folder: str) -> list[RankState]:
    return [_step_of(each, rank, f"{folder}/{number}") for number, each in enumerate(recipes)]


def _step_of(recipe: Recipe, rank: int, store: str) -> RankState:
    size, rows = recipe.parallel.world, (recipe.train.micro_rows, recipe.train.sequence)
    info = RankInfo(rank, size, connect=lambda: FileStore(store, size))
    with distributed(recipe.parallel, recipe.train, info) as world:
        engine = engine_of(recipe, vocabulary(recipe), world)
        for shard in engine.shards.values():
            shard.tensor.detach().fill_(0.01)
        optimizer, traffic = optimizer_of(recipe, engine), world.clock.traffic
        engine.zero_gradients()
        traffic.begin()
        engine.forward_backward([batch_of(torch.zeros(rows, dtype=torch.int64))], float(recipe.train.batch_tokens))
        engine.clip_gradients(1.0)
        engine.step(optimizer)
        sent = {f"{kind}, {axis}": volume.bytes for (axis, kind), volume in traffic.take().flows.items()}
        return RankState({name: _bytes_in(each) for name, each in state_tensors(engine, optimizer).items()}, sent)


def _bytes_in(tensors: Sequence[torch.Tensor]) -> int:
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
    return sum(storages.values())


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


def path_of(
    optim: OptimizerConfig, loss: Callable[[Any, Any], Any], start: Place, steps: int, noise: float
) -> list[Place]:
    """The places before each step and after the last, of two values that an optimizer trains as a matrix.

    `noise`: standard deviation of what is added to each gradient.
    """
    torch.manual_seed(0)
    point = Parameter(torch.tensor(start).view(2, 1))
    optimizer = build_optimizer({"point": point}, {"point": "matrix"}, optim)
    places = [start]
    for _ in range(steps):
        (point.grad,) = torch.autograd.grad(loss(*point.unbind()).sum(), point)
        point.grad += noise * torch.randn_like(point)
        optimizer.step()
        x, y = point.flatten().tolist()
        places.append((x, y))
    return places


def losses_of(recipe: Recipe, optim: OptimizerConfig, text: str, rates: Sequence[float]) -> list[float]:
    """Mean loss in nats per byte at each step of a recipe's model that learns the bytes of a text by heart; `rates` has
    the learning rate of each step."""
    torch.manual_seed(0)
    tokens = _bytes_of(text, recipe)
    _, step = training_step(recipe.model, 256, recipe.train, optim=optim, tokens=tokens)
    return [_mean_loss(step(rate), tokens) for rate in rates]


def _bytes_of(text: str, recipe: Recipe) -> torch.Tensor:
    """The bytes of a text as the rows of a microbatch, as often as they fit."""
    shape = recipe.train.micro_rows, recipe.train.sequence
    return torch.from_numpy(np.resize(np.frombuffer(text.encode(), np.uint8), shape).astype(np.int64))


def _mean_loss(losses: dict[str, torch.Tensor], tokens: torch.Tensor) -> float:
    return float(losses["loss"]) / tokens.numel()


def proxies(
    recipe: Recipe, texts: Mapping[str, bytes], held_out: Mapping[str, bytes], seconds: float
) -> tuple[int, dict[str, dict[str, np.ndarray]]]:
    """(steps, losses of held-out texts by training text) of a recipe's model that learns each text.

    They take about `seconds` in all. Every model makes as many steps, from one start and one random state. Losses are
    in nats per byte, of the same microbatches for every model.
    """
    found, steps = dict[str, dict[str, np.ndarray]](), 0
    for name, text in texts.items():
        torch.manual_seed(0)
        random = np.random.default_rng(0)
        _, step = training_step(recipe.model, 256, recipe.train, optim=recipe.optim)
        begun, done = time.perf_counter(), 0
        while done < (steps or LEAST_STEPS) or (not steps and time.perf_counter() < begun + seconds / len(texts)):
            step(tokens=_windows(text, recipe, random))
            done += 1
        steps, random = done, np.random.default_rng(1)
        scored = {each: [_windows(held, recipe, random) for _ in range(SCORED)] for each, held in held_out.items()}
        found[name] = {
            each: np.array([_mean_loss(step(0.0, tokens), tokens) for tokens in some]) for each, some in scored.items()
        }
    return steps, found


def _windows(text: bytes, recipe: Recipe, random: np.random.Generator) -> torch.Tensor:
    """Rows of a microbatch from random places of a text."""
    rows, sequence = recipe.train.micro_rows, recipe.train.sequence
    values = np.resize(np.frombuffer(text, np.uint8), max(len(text), sequence + 1)).astype(np.int64)
    starts = random.integers(0, len(values) - sequence, rows)
    return torch.from_numpy(values[starts[:, None] + np.arange(sequence)])


def routed(recipe: Recipe, text: str, steps: int) -> tuple[float, np.ndarray]:
    """(loss in nats per byte, experts that each byte chooses) of a recipe's model after some steps on a text.

    Choices are int64 [layers, rows, tokens, active]; an expert without room does not serve all of them.
    """
    tokens = _bytes_of(text, recipe)
    engine, step = training_step(recipe.model, 256, recipe.train, tokens=tokens)
    for _ in range(steps):
        step()
    choices = list[np.ndarray]()
    for each in engine.model.modules():
        if isinstance(each, Experts):
            each.router.register_forward_hook(lambda *call: choices.append(call[-1].experts.numpy()))
    return _mean_loss(step(), tokens), np.stack(choices)
