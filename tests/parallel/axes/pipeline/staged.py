"""One step of a pipeline on a rank: losses, gradients of every parameter, the passes, and an evaluation."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hornbook.parallel.axes.pipeline.messages import Key
from hornbook.parallel.axes.pipeline.pipeline_runner import PipelineRunner
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.world import RankInfo, distributed
from hornbook.settings.training import TrainConfig
from tests.parallel.cases import CPU
from tests.parallel.trajectory import SEED, Run, grid_of, make_engine, share
from tests.ranks import RankServer

ADDRESS = "tests/parallel/axes/pipeline/staged.py:one_step"


def one_step(rank_info: RankInfo, settings: dict[str, Any], folder: str) -> dict[str, Any]:
    """On this rank; the gradients of its shards go to `folder`."""
    run = Run(**settings)
    config = ParallelConfig.model_validate(run.parallel)
    precision = "fp32" if run.precision == "fp64" else run.precision
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": precision})
    with distributed(config, train, rank_info) as world:
        engine = make_engine(run, config, train, world)
        grid = grid_of(run, 0)
        mine = share(grid, world)
        before = engine.evaluate(grid[0]).double().sum()
        assert not engine.clock.traffic.take().flows, "records of an evaluation are kept"
        losses, total = {}, sum(float(batch.weights.sum()) for batch in grid)
        for _ in range(2):  # nothing of a step is left in the next
            engine.zero_gradients()
            losses = engine.forward_backward(mine, total, (SEED, 0))
        gradients = {name: each.grad for name, each in engine.named_parameters.items() if each.grad is not None}
        save_file({name: each.contiguous() for name, each in gradients.items()}, f"{folder}/{world.rank}")
        runner = engine.runner
        executed = [str(each) for each in runner.executed] if isinstance(runner, PipelineRunner) else []
        evaluated = [float(before), float(engine.evaluate(grid[0]).double().sum())]
        evaluated.append(float(engine.logits(grid[0].tokens).double().square().sum()) if run.family == "" else 0.0)
        told = {name: float(loss) for name, loss in losses.items()}
        return {"losses": told, "norm": float(engine.clip_gradients(1.0)), "evaluated": evaluated, "passes": executed}


def most_held(rank_info: RankInfo, settings: dict[str, Any]) -> int:
    """Gradients that this rank has sent and holds, at most, within a step."""
    run, found = Run(**settings), [0]
    with distributed(ParallelConfig.model_validate(run.parallel), CPU, rank_info) as world:
        engine = make_engine(run, ParallelConfig.model_validate(run.parallel), CPU, world)
        assert isinstance(engine.runner, PipelineRunner)
        messages = engine.runner.messages
        send = messages.send

        def measured(key: Key, tensors: Sequence[Tensor]) -> None:
            send(key, tensors)
            found.append(sum(each.content == "I" for each in messages._leaving))

        messages.send = measured
        grid = grid_of(run, 0)
        engine.forward_backward(grid, sum(float(batch.weights.sum()) for batch in grid))
        return max(found)


def step_of(run_ranks: RankServer, run: Run, folder: Path) -> tuple[dict[str, Any], list[list[str]], dict[str, Tensor]]:
    """(what all ranks say, the passes of each, whole gradients); copies on several ranks are compared to the bit."""
    folder.mkdir()
    ranks = run_ranks(ADDRESS, run.ranks, asdict(run), str(folder))
    passes = [rank.pop("passes") for rank in ranks]
    assert ranks == ranks[:1] * len(ranks), "ranks disagree"
    gradients: dict[str, Tensor] = {}
    for rank in range(run.ranks):
        for name, gradient in load_file(folder / str(rank)).items():
            assert torch.equal(gradients.setdefault(name, gradient), gradient), f"copies of {name} differ"
    return ranks[0], passes, gradients
