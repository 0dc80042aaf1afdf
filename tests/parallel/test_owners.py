"""Update rules that need whole parameters, on ranks that share each parameter."""

from pathlib import Path

import pytest
import torch

from hornbook.optim.config.rule import StateTensor
from hornbook.parallel.owners import Owners
from hornbook.parallel.world import World
from tests.parallel.cases import whole_shard
from tests.parallel.trajectory import LAYOUTS, Result, Run, perform, same_bits
from tests.ranks import RankServer

KIND = "tests.parallel.balancing:Balancing"
STEPS = 4


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize(
    ("world", "layout"),
    [(2, "optimizer"), pytest.param(4, "everything", marks=pytest.mark.slow), (4, "hybrid"), (2, "none")],
)
def test_ranks_update_as_one_process_does(
    run_ranks: RankServer, tmp_path: Path, world: int, layout: str, experts: bool
) -> None:
    """With exact sums of gradients, to the bit: matrices, vectors, experts, parameters with fewer rows than ranks."""
    sizes = {"steps": STEPS, "microbatches": world}
    run = Run(world, **LAYOUTS[layout], **sizes, optimizer=KIND, exact=True, experts=experts)
    expected = alone(run_ranks, run.alone, tmp_path)
    assert expected.losses[-1] < expected.losses[0]
    assert same_bits(perform(run_ranks, run, tmp_path / "ranks"), expected)


def alone(server: RankServer, run: Run, folder: Path) -> Result:
    return perform(server, run, folder / "alone")


def test_one_process_updates_its_own_tensors() -> None:
    shard = whole_shard(torch.nn.Parameter(torch.ones(3, 2)))
    owners = Owners({"w": shard}, World(torch.device("cpu")))
    assert owners.take(["w"])["w"] is shard.tensor
    assert owners.shards == {"w": shard}


def test_squares_have_the_sides_of_each_matrix() -> None:
    left, right = StateTensor("l", "left"), StateTensor("r", "right")
    assert (left.shape((5, 3)), right.shape((5, 3))) == ((5, 5), (3, 3))
    assert (left.shape((7, 5, 3)), right.shape((7, 5, 3))) == ((7, 5, 5), (7, 3, 3))
    assert left.shape((0, 3)) == right.shape((0, 3)) == (0, 0)
