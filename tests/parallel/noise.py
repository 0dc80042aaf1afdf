"""The gradients of parts of a batch on ranks, for tests of the noise scale: `tests/parallel/noise.py:measure`."""

from collections.abc import Sequence
from typing import Any

import torch

from hornbook.data.batch import Batch
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.world import RankInfo, World, distributed
from hornbook.settings.training import TrainConfig
from tests.parallel.trajectory import SEED, Run, make_engine, microbatches, share

KEY = (SEED, 0)


def measure(rank_info: RankInfo, fields: dict[str, Any]) -> list[float]:
    """[mean |g_part|^2, mean 1 / b_part, |g|] of one step of a run."""
    run = Run(**fields)
    layout = {"data": run.world, "shard": run.shard, "replicas": run.replicas, "exact": run.exact}
    config = ParallelConfig.model_validate(layout)
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": run.precision})
    with distributed(config, train, rank_info) as world:
        engine = make_engine(run, config, train, world)
        engine.measure_part()
        return step(engine, share(grid(run), world), total(grid(run)))


def step(engine: Any, batches: Sequence[Batch], total_weight: float) -> list[float]:
    engine.zero_gradients()
    engine.forward_backward(batches, total_weight, KEY)
    part = [float(each) for each in engine.part_of_batch()]
    return [*part, float(engine.clip_gradients(0.0))]


def expected(run: Run, parts: Sequence[Sequence[int]]) -> list[float]:
    """The same from the definition: the gradient of each part, and of all, each computed alone in this process."""
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "fp32"})
    engine, batches = make_engine(run.alone, ParallelConfig(), train, World(torch.device("cpu"))), grid(run)
    squares, inverses = [], []
    for numbers in parts:
        part = [batches[number] for number in numbers]
        squares.append(step(engine, part, total(part))[0] ** 2)
        inverses.append(1 / total(part))
    return [sum(squares) / len(squares), sum(inverses) / len(inverses), step(engine, batches, total(batches))[0]]


def grid(run: Run) -> list[Batch]:
    return microbatches(0, run.microbatches, run.sequence)


def total(batches: Sequence[Batch]) -> float:
    return sum(float(batch.weights.sum()) for batch in batches)
