"""What every rank of a layout holds, without the ranks: `tests/parallel/tiling.py:parts_of_all_ranks`.

One process builds the model of each rank in turn under torch's fake process group, whose collectives do nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from hornbook.model.build import build_model
from hornbook.parallel import world as world_module
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import RankInfo, distributed
from hornbook.run.config import TrainConfig
from tests.parallel import odd
from tests.parallel.trajectory import Run

ADDRESS = "tests/parallel/tiling.py:parts_of_all_ranks"
CPU = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "fp32"})
Part = tuple[list[int], list[int], list[int], bool]
"""Shape of the whole parameter, first index, shape of the part, whether the rank is the primary replica."""


def parts_of_all_ranks(_: RankInfo, runs: list[dict[str, Any]]) -> list[list[dict[str, Part]]]:
    """By run and rank: its part of every parameter."""
    world_module.join = _join_nobody
    return [[_parts(Run(**run), rank) for rank in range(Run(**run).ranks)] for run in runs]


def _join_nobody(_store: Any, place: RankInfo, _device: torch.device) -> None:
    dist.init_process_group("fake", rank=place.rank, world_size=place.size, store=FakeStore())


def _parts(run: Run, rank: int) -> dict[str, Part]:
    place = RankInfo(rank, run.ranks, rank, FakeStore)
    config = ParallelConfig.model_validate(run.parallel)
    with distributed(config, CPU, place) as world:
        engine = parallelize(build_model(odd.model_config(run.odd, run.sizes), odd.VOCAB), config, CPU, world)
        return {
            name: (list(each.shape), list(each.start), list(each.tensor.shape), each.is_primary)
            for name, each in engine.shards.items()
        }


def request(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """The argument of `parts_of_all_ranks`."""
    return [asdict(run) for run in runs]


def check_tiling(run: Run, ranks: Sequence[Mapping[str, Part]]) -> None:
    """Raise AssertionError unless primary replicas tile every parameter of the whole model without gap or overlap, and
    every other part is a copy of one of them.
    """
    model = build_model(odd.model_config(run.odd, run.sizes), odd.VOCAB, "meta")
    shapes = {name: tuple(each.shape) for name, each in model.named_parameters()}
    assert {name for rank in ranks for name in rank} == shapes.keys(), "ranks hold other parameters than the model"
    for name, shape in shapes.items():
        held = [(number, rank[name]) for number, rank in enumerate(ranks) if name in rank]
        assert {tuple(part[0]) for _, part in held} == {shape}, f"{name} has another shape on some rank"
        count = torch.zeros(shape, dtype=torch.int64)
        for _, (_, start, size, is_primary) in held:
            if is_primary:
                count[place(start, size)] += 1
        assert (count == 1).all(), f"{name}: {int((count == 0).sum())} values on no rank, {int((count > 1).sum())} on two"
        mine = {(tuple(start), tuple(size)) for _, (_, start, size, is_primary) in held if is_primary}
        for number, (_, start, size, _) in held:
            assert 0 in size or (tuple(start), tuple(size)) in mine, f"rank {number} holds no copy of a part of {name}"


def place(start: Sequence[int], size: Sequence[int]) -> tuple[slice, ...]:
    """A part as an index into the whole."""
    return tuple(slice(first, first + length) for first, length in zip(start, size, strict=True))
