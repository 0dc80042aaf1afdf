"""The gradient noise scale: a problem with a known answer, and the parts of real batches on one rank and on several."""

import math
from dataclasses import asdict
from typing import Any

import pytest
import torch

from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.gradients.noise_scale import NoiseRecord, NoiseScale
from hornbook.parallel.world import World
from hornbook.settings.training import TrainConfig
from tests.parallel import noise
from tests.parallel.noise import KEY
from tests.parallel.trajectory import LAYOUTS, Run, make_engine
from tests.ranks import RankServer

DIMS, TARGETS = 2000, 64


def synthetic(parts: list[int], steps: int, seed: int = 0) -> tuple[NoiseScale, float, list[NoiseRecord]]:
    """(after so many steps, the true noise scale, the records); a step has parts of so many targets."""
    generator = torch.Generator().manual_seed(seed)
    deviations = torch.linspace(0.1, 1.0, DIMS, dtype=torch.float64)
    truth = torch.randn(DIMS, generator=generator, dtype=torch.float64) * 0.03
    scale, total, records = NoiseScale(steps), sum(parts), []
    for _ in range(steps):
        noises = [
            deviations * torch.randn(DIMS, generator=generator, dtype=torch.float64) / math.sqrt(size) for size in parts
        ]
        whole = sum((size * (truth + each) for size, each in zip(parts, noises, strict=True)), torch.zeros(())) / total
        squares = [float((truth + each).square().sum()) for each in noises]
        inverses = [1 / size for size in parts]
        scale.update([sum(squares) / len(parts), sum(inverses) / len(parts)], float(whole.norm()), total)
        records.append(scale.record())
    return scale, float(deviations.square().sum() / truth.square().sum()), records


@pytest.mark.parametrize("parts", [[16] * 4, [8, 24, 32], [4, 60]])
def test_a_problem_of_2000_dimensions_with_a_known_answer(parts: list[int]) -> None:
    """The ratio of averages over 400 steps is within 5 %; parts of unequal size have no bias of their own."""
    scale, truth, _ = synthetic(parts, 400)
    assert 300 < truth < 600
    assert scale.ratio == pytest.approx(truth, rel=0.05)


def test_a_mean_of_ratios_is_not_the_ratio_of_means() -> None:
    """Which the module rests on: with little signal in a step, ratios of single steps are far off."""
    scale, truth, records = synthetic([8, 8], 400, seed=1)
    ratios = [record.trace / record.signal for record in records if record.trace and record.signal]
    assert scale.ratio is not None
    assert abs(scale.ratio - truth) < abs(sum(ratios) / len(ratios) - truth) / 3


def test_what_says_nothing_is_left_out() -> None:
    scale = NoiseScale(10)
    scale.update([0.0, 0.0], 1.0, 64.0)
    scale.update([math.inf, 1 / 16], 1.0, 64.0)
    scale.update([1.0, 1 / 64], 1.0, 64.0)
    assert scale.record() == NoiseRecord(None, None, None)
    scale.update([2.0, 1 / 16], 1.0, 64.0)
    assert scale.record().trace == pytest.approx(1 / (1 / 16 - 1 / 64))
    again = NoiseScale(10)
    again.load(scale.state())
    assert (again.ratio, again.state()) == (scale.ratio, scale.state())


@pytest.mark.parametrize("exact", [False, True])
def test_the_part_of_one_process_is_its_first_microbatch(exact: bool) -> None:
    run = Run(microbatches=5)
    train = TrainConfig.model_validate({"device": "cpu", "threads": 1, "precision": "fp32"})
    engine = make_engine(run, ParallelConfig(exact=exact), train, World(torch.device("cpu")))
    engine.measure_part()
    grid = noise.grid(run)
    found = noise.step(engine, grid, noise.total(grid))
    assert found == pytest.approx(noise.expected(run, [[0]]), rel=1e-5)
    engine.zero_gradients()
    engine.forward_backward(grid[:1], noise.total(grid[:1]), KEY)
    assert all(each == 0 for each in engine.part_of_batch())  # the first is all


@pytest.mark.parametrize(
    ("world", "layout", "exact", "precision"),
    [
        (2, "none", False, "fp32"),
        (3, "none", False, "fp32"),
        (2, "none", False, "fp16"),
        (2, "none", True, "fp32"),
        (2, "gradients", False, "fp32"),
        (2, "everything", False, "fp32"),
        (2, "everything", True, "fp32"),
        (4, "hybrid", False, "fp32"),
    ],
)
def test_the_parts_on_several_ranks(
    run_ranks: RankServer, world: int, layout: str, exact: bool, precision: Any
) -> None:
    """The shares of the ranks, or the first round of microbatches; each compared with its gradient computed alone."""
    run = Run(world=world, **LAYOUTS[layout], exact=exact, precision=precision, microbatches=2 * world + (world > 2))
    by_rank = layout == "none" and not exact
    numbers = range(run.microbatches)
    parts = [list(numbers[rank::world]) for rank in range(world)] if by_rank else [list(range(world))]
    found = run_ranks("tests/parallel/noise.py:measure", world, asdict(run))
    assert found == found[:1] * world
    tolerance = 2e-2 if precision == "fp16" else 1e-4
    wanted = noise.expected(run, parts)
    assert found[0] == pytest.approx(wanted, rel=tolerance)
