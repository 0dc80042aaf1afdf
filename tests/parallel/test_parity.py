"""Parallel equals single: short training runs on 2, 3 and 4 ranks against one process.

The whole table, 20 steps of every layout, is `python -m benchmarks.training.layouts`.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from tests.parallel.trajectory import CLIP, LAYOUTS, Result, Run, compare, largest_of, perform, same_bits
from tests.ranks import RankServer

STEPS = 6
Performer = Callable[[Run], Result]


@pytest.fixture(scope="module")
def done(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Performer:
    """The result of a run; the same run is not done twice."""

    @cache
    def result(run: Run) -> Result:
        return perform(run_ranks, run, tmp_path_factory.mktemp("run") / "weights")

    return result


@pytest.mark.parametrize(
    ("world", "layout", "tied"),
    [
        (2, "none", True),
        (3, "none", True),
        (2, "optimizer", True),
        (3, "gradients", True),
        (2, "everything", False),
        (4, "everything", True),
        (4, "hybrid", True),
    ],
)
def test_in_float64_only_the_last_digits_differ(done: Performer, world: int, layout: str, tied: bool) -> None:
    run = Run(world, **LAYOUTS[layout], precision="fp64", tied=tied, steps=STEPS)
    expected = done(run.alone)
    assert min(expected.norms) > CLIP
    assert expected.losses[-1] < expected.losses[0] - 0.5
    difference = compare(done(run), expected)
    assert largest_of([difference.losses, difference.norms, difference.weights]) < 1e-9, difference


@pytest.mark.parametrize(("world", "layout"), [(3, "none"), (2, "optimizer"), (2, "gradients"), (4, "hybrid")])
def test_float32_losses(done: Performer, world: int, layout: str) -> None:
    run = Run(world, **LAYOUTS[layout], steps=STEPS)
    assert compare(done(run), done(run.alone)).losses < 1e-5


@pytest.mark.parametrize("precision", ["bf16", pytest.param("fp16", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("world", "layout"), [(2, "none"), (3, "everything")])
def test_half_precision_differs_as_two_orders_of_the_same_microbatches_do(
    done: Performer, precision: str, world: int, layout: str
) -> None:
    run = Run(world, **LAYOUTS[layout], precision=precision, steps=STEPS)
    expected = done(run.alone)
    others = [replace(run.alone, backwards=True), replace(run.alone, exact=True)]
    others += [replace(run.alone, rotated=first) for first in (1, 2, 4)]
    orders = [compare(done(other), expected) for other in others]
    difference = compare(done(run), expected)
    assert difference.losses < 3 * largest_of(order.losses for order in orders)
    assert difference.norms < 3 * largest_of(order.norms for order in orders)
    assert difference.weights < 3 * largest_of(order.weights for order in orders)


def test_float32_sums_in_another_order_have_other_bits(done: Performer) -> None:
    """So that equal bits below are the doing of the exact mode, not of a model too small to tell."""
    assert not same_bits(done(Run(2, steps=STEPS)), done(Run(steps=STEPS)))


@pytest.mark.parametrize("microbatches", [8, 5])
@pytest.mark.parametrize(
    ("world", "layout"),
    [(2, "none"), (4, "none"), (2, "optimizer"), (2, "everything"), (4, "everything"), (4, "hybrid")],
)
def test_exact_sums_give_the_same_bits_on_any_number_of_ranks(
    done: Performer, world: int, layout: str, microbatches: int
) -> None:
    """Five microbatches leave ranks without one in the last round."""
    run = Run(world, **LAYOUTS[layout], exact=True, steps=4, microbatches=microbatches)
    assert same_bits(done(run), done(run.alone)), compare(done(run), done(run.alone))


def test_exact_sums_give_the_same_bits_in_bf16(done: Performer) -> None:
    run = Run(4, **LAYOUTS["hybrid"], exact=True, precision="bf16", steps=4)
    assert same_bits(done(run), done(run.alone))


@pytest.mark.parametrize(("world", "layout"), [(2, "none"), (2, "everything"), (4, "hybrid")])
def test_mixtures_of_experts_have_the_same_bits(done: Performer, world: int, layout: str) -> None:
    """Auxiliary losses and the biases that follow the loads of the whole global batch included."""
    run = Run(world, **LAYOUTS[layout], exact=True, steps=4, microbatches=5, experts=True)
    found, expected = done(run), done(run.alone)
    assert same_bits(found, expected), compare(found, expected)
    for layer in range(2):
        moves = found.weights[f"blocks.{layer}.mlp.router.bias"] / 0.02
        torch.testing.assert_close(moves, moves.round())
        assert moves.any()


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    "layout", ["none", *(pytest.param(each, marks=pytest.mark.slow) for each in ("everything", "hybrid"))]
)
def test_an_axis_besides_those_of_data_changes_no_bit(done: Performer, layout: str, exact: bool) -> None:
    """Each reduction is over the axes it names: losses, gradients, norms, router loads of two ranks count once."""
    run = Run(4 if layout == "hybrid" else 2, **LAYOUTS[layout], exact=exact, steps=3, microbatches=5, experts=True)
    found, expected = done(replace(run, copies=2)), done(run)
    assert same_bits(found, expected), compare(found, expected)


def test_mixtures_of_experts_in_float64(done: Performer) -> None:
    run = Run(3, **LAYOUTS["gradients"], precision="fp64", steps=4, experts=True)
    difference = compare(done(run), done(run.alone))
    assert largest_of([difference.losses, difference.norms, difference.weights]) < 1e-9, difference


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("layout", ["none", "everything"])
def test_a_bad_gradient_of_one_rank_makes_all_refuse(done: Performer, layout: str, precision: str) -> None:
    run = Run(2, **LAYOUTS[layout], exact=True, precision=precision, steps=4, spoil=(1, 1))
    found, expected = done(run), done(run.alone)
    assert found.applied == expected.applied == [1.0, 0.0, 1.0, 1.0]
    assert math.isnan(found.norms[1])
    first, later = (2.0**16, 2.0**15) if precision == "fp16" else (1.0, 1.0)
    assert found.scales == expected.scales == [first, later, later, later]
    assert all(torch.equal(weight, expected.weights[name]) for name, weight in found.weights.items())
