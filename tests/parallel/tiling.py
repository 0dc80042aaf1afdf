"""What every rank of a layout holds: `tests/parallel/tiling.py:parts_of_rank`, which is a table of rectangles.

Each rank builds its part of the model under torch's fake process group, whose collectives do nothing: no rank waits for
another, and no step is done.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from hornbook.model.build_model import build_model
from hornbook.parallel import world as world_module
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import AXES, RankInfo, distributed
from hornbook.settings.training import TrainConfig
from tests.parallel import odd
from tests.parallel.trajectory import Run

ADDRESS = "tests/parallel/tiling.py:parts_of_rank"
CPU = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "fp32"})


class Part(NamedTuple):
    """What a rank holds of a parameter (`hornbook.parallel.parameter_shard.ParameterShard`)."""

    shape: list[int]
    """Of the whole parameter."""
    start: list[int]
    size: list[int]
    is_primary: bool
    axes: list[str]
    copy: int
    ranks: dict[str, int]
    """Number of the rank along each axis."""

    @property
    def rectangle(self) -> tuple[slice, ...]:
        """As an index into the whole."""
        return tuple(slice(first, first + length) for first, length in zip(self.start, self.size, strict=True))

    @property
    def counts(self) -> bool:
        """Whether a norm takes its squares from here: the first of those that hold the same."""
        return self.copy == 0 and not any(rank for axis, rank in self.ranks.items() if axis not in self.axes)


def parts_of_rank(place: RankInfo, runs: list[dict[str, Any]]) -> list[dict[str, Part]]:
    """Of each run of as many ranks: what this rank has of every parameter."""
    world_module.join = _join_nobody
    return [_parts(Run(**run), replace(place, connect=FakeStore)) for run in runs]


def _join_nobody(_store: Any, place: RankInfo, _device: torch.device) -> None:
    dist.init_process_group("fake", rank=place.rank, world_size=place.size, store=FakeStore())


def _parts(run: Run, place: RankInfo) -> dict[str, Part]:
    config = ParallelConfig.model_validate(run.parallel)
    with distributed(config, CPU, place) as world:
        engine = parallelize(build_model(odd.model_config(run.odd, run.sizes), odd.VOCAB), config, CPU, world)
        ranks = {axis: world.axis_rank([axis]) for axis in AXES}
        return {
            name: Part(
                list(each.shape),
                list(each.start),
                list(each.tensor.shape),
                each.is_primary,
                list(each.axes),
                each.copy + each.stage_copy,
                ranks,
            )
            for name, each in engine.shards.items()
        }


def parts_of_all(run_ranks: Any, runs: Sequence[Run]) -> Iterator[tuple[Run, list[dict[str, Part]]]]:
    """Runs, and what each rank holds of their models."""
    for size in sorted({run.ranks for run in runs}):
        same = [run for run in runs if run.ranks == size]
        found = run_ranks(ADDRESS, size, [asdict(run) for run in same])
        for run, ranks in zip(same, zip(*found, strict=True), strict=True):
            yield run, [{name: Part(*part) for name, part in rank.items()} for rank in ranks]


def check_tiling(run: Run, ranks: Sequence[Mapping[str, Part]]) -> None:
    """Raise AssertionError unless the parts that are saved, and those whose squares a norm counts, tile every parameter
    of the whole model without gap or overlap, and ranks that differ along other axes than a part's hold the same.
    """
    model = build_model(odd.model_config(run.odd, run.sizes), odd.VOCAB, "meta")
    shapes = {name: list(each.shape) for name, each in model.named_parameters()}
    assert {name for rank in ranks for name in rank} == shapes.keys(), "ranks hold other parameters than the model"
    for name, shape in shapes.items():
        held = [rank[name] for rank in ranks if name in rank]
        assert all(part.shape == shape for part in held), f"{name} has another shape on some rank"
        _check_tiles(f"{name}, saved", shape, [part for part in held if part.is_primary])
        _check_tiles(f"{name}, in norms", shape, [part for part in held if part.counts])
        groups: dict[tuple[int, ...], Part] = {}
        for part in held:
            first = groups.setdefault(tuple(part.ranks[axis] for axis in part.axes), part)
            same = (first.axes, first.start, first.size, first.copy) == (part.axes, part.start, part.size, part.copy)
            assert same, f"{name}: ranks {first.ranks} and {part.ranks} hold other parts, and differ along other axes"


def _check_tiles(what: str, shape: Sequence[int], parts: Sequence[Part]) -> None:
    count = torch.zeros(tuple(shape), dtype=torch.int64)
    for part in parts:
        count[part.rectangle] += 1
    assert (count == 1).all(), f"{what}: {int((count == 0).sum())} values on no rank, {int((count > 1).sum())} on two"
