"""Shards: what ranks save of parameters and optimizer state adds up to the whole, every element once."""

from typing import Any

import pytest
import torch
from torch.nn import Parameter

from hornbook.errors import IntegrityError, UsageError
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.config.rule import Shape, StateTensor
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.parameter_shard import ParameterShard, Shard, check_cover, state_shards

KINDS = (
    StateTensor("shape", "shape"),
    StateTensor("rows", "rows", "float64"),
    StateTensor("columns", "columns", "bfloat16"),
    StateTensor("blocks", "blocks", "uint8", 4),
    StateTensor("scalar", "scalar", "int64"),
)


class Declaring(OptimizerConfig):
    """State of every extent; it is never stepped."""

    lr: float = 1.0

    def state_tensors(self, shape: Shape) -> tuple[StateTensor, ...]:  # noqa: ARG002
        return KINDS

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups)


def shards_of(shape: tuple[int, ...], ranks: int, rank: int, replica: int, config: OptimizerConfig) -> dict[str, Shard]:
    """State of the rows that `fully_shard` gives a rank: equal parts, the last ones may be empty."""
    rows = shape[0]
    size = -(-rows // ranks)
    first = min(rank * size, rows)
    tensor = Parameter(torch.zeros(min(size, rows - first), *shape[1:]))
    optimizer = Optimizer(config, [(config, [{"params": [("p", tensor)], "lr_factor": 1.0}])], {"p": shape})
    start = (first, *(0 for _ in shape[1:]))
    return state_shards(optimizer, {"p": ParameterShard(tensor, shape, start, is_primary=replica == 0)})


@pytest.mark.parametrize("shape", [(10, 6), (8, 9), (3, 5, 4), (32,), (1, 1)])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_every_element_of_the_state_is_saved_once(shape: tuple[int, ...], ranks: int) -> None:
    saved: dict[str, torch.Tensor] = {}
    for replica in range(2):
        for rank in range(ranks):
            for name, shard in shards_of(shape, ranks, rank, replica, Declaring()).items():
                whole = saved.setdefault(name, torch.zeros(shard.shape))
                assert whole.shape == shard.shape
                part = whole[shard.slices]
                assert part.shape == shard.tensor.shape
                part += shard.is_primary
    assert set(saved) == {f"p.{kind.name}" for kind in KINDS}
    for name, times in saved.items():
        assert bool((times == 1).all()), f"{name} is saved {times} times"


def test_state_has_the_declared_dtypes() -> None:
    found = shards_of((4, 4), 1, 0, 0, Declaring())
    dtypes = {name: str(shard.tensor.dtype).removeprefix("torch.") for name, shard in found.items()}
    assert dtypes == {f"p.{kind.name}": kind.dtype for kind in KINDS} | {"p.shape": "float32"}


def test_blocks_that_ranks_would_share_are_refused() -> None:
    for rank in range(2):
        with pytest.raises(UsageError, match=r"elements \d+ to \d+ of p \[10\].*kept for blocks of 4"):
            shards_of((10,), 2, rank, 0, Declaring())


def test_what_does_not_fit_is_named() -> None:
    wanted = {"a.exp_avg": (4,), "b": (2, 3)}
    check_cover(wanted, dict(wanted))
    with pytest.raises(IntegrityError, match=r"a\.exp_avg is missing"):
        check_cover(wanted, {"b": (2, 3)})
    with pytest.raises(IntegrityError, match="c is not of this model"):
        check_cover(wanted, wanted | {"c": (1,)})
    with pytest.raises(IntegrityError, match=r"a\.exp_avg has shape \[3\], not \[4\]"):
        check_cover(wanted, wanted | {"a.exp_avg": (3,)})
