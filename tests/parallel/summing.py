"""What ranks do in `tests/parallel/test_data_parallel.py`."""

from typing import Any

import torch
from torch import nn

from hornbook.parallel.gradients.sums import GradientSums
from hornbook.parallel.world import TOKENS, RankInfo, distributed
from tests.parallel.cases import CPU, parallel, whole_shard
from tests.parallel.trajectory import SEED, Run, digest, grid_of, make_engine, share


def digests(place: RankInfo, settings: dict[str, Any]) -> list[list[str]]:
    """Of the gradients of one batch, three times: of the first step of an engine, and of later ones."""
    config, run = parallel(place, **settings), Run(experts=True, microbatches=5)
    with distributed(config, CPU, place) as world:
        engine, grid = make_engine(run, config, CPU, world), grid_of(run, 0)
        found = []
        for _ in range(3):
            engine.zero_gradients()
            engine.forward_backward(share(grid, world), sum(float(each.weights.sum()) for each in grid), (SEED, 0))
            found.append([digest(each.grad) for each in engine.named_parameters.values() if each.grad is not None])
        return found


def launched(place: RankInfo, lacking: int) -> tuple[list[int], list[float]]:
    """Calls begun within each of two backward passes and by `finish`, and the sums; a bucket holds one parameter.

    The loss of the rank `lacking` does without the one whose gradient comes first.
    """
    config = parallel(place, bucket_mb=1e-6)
    with distributed(config, CPU, place) as world:
        parts = {name: nn.Parameter(torch.ones(3)) for name in ("embedding", "blocks", "head")}
        frozen = {"frozen": nn.Parameter(torch.ones(3), requires_grad=False)}
        sums = GradientSums({name: whole_shard(each) for name, each in (parts | frozen).items()}, world, TOKENS, config)
        sums.launch_early()
        calls = list[int]()

        def count() -> None:
            calls.append(sum(each.calls for each in world.clock.traffic.take().flows.values()))

        for last in (False, True):
            sums.is_last = last
            used = [each for name, each in parts.items() if name != "head" or place.rank != lacking]
            torch.stack([each.sum() * 2**place.rank for each in used]).sum().backward()
            count()
        sums.finish()
        count()
        return calls, [float(each.grad[0]) for each in parts.values() if each.grad is not None]
