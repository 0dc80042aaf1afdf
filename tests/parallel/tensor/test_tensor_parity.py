"""Ranks that divide matrices, and time between them, equal one process: losses, norms, gradients, weights."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.parallel.families import MODELS
from tests.parallel.tensor.variants import VARIANTS, VOCAB, variant
from tests.parallel.trajectory import LAYOUTS, Result, Run, compare, perform
from tests.ranks import RankServer

Performer = Callable[[Run], Result]
STEPS = 3
LAYOUT_RUNS: dict[str, dict[str, Any]] = {
    "2": {"tensor": 2},
    "2 parts": {"tensor": 2, "parts": True},
    "4": {"tensor": 4},
    "4 parts": {"tensor": 4, "parts": True},
    "2x2": {"world": 2, "tensor": 2},
    "2x2 everything": {"world": 2, "tensor": 2, "shard": "everything", "parts": True},
}
QUICK = {("llama", "4"), ("capped", "2 parts"), ("experts", "2"), ("olmo", "2x2 everything")}
EACH = [
    pytest.param(name, layout, marks=() if (name, layout) in QUICK else pytest.mark.slow)
    for name in VARIANTS
    for layout in LAYOUT_RUNS
]


@pytest.fixture(scope="module")
def done(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Performer:
    """The result of a run; the same run is not done twice."""

    @cache
    def result(run: Run) -> Result:
        return perform(run_ranks, run, tmp_path_factory.mktemp("run") / "weights")

    return result


def check(done: Performer, run: Run, limit: float = 1e-9) -> None:
    expected = done(run.alone)
    difference = compare(done(run), expected)
    assert max(difference.losses, difference.norms, difference.weights, difference.gradients) < limit, difference


def decoder(name: str, **settings: Any) -> Run:
    """23 positions, which two and four ranks do not divide."""
    sizes = {"model": variant(name), "vocab": VOCAB, "sequence": 23, "steps": STEPS, "microbatches": 3}
    return Run(**{**sizes, "precision": "fp64", "gradients": True, **settings})


@pytest.mark.parametrize(("name", "layout"), EACH)
def test_a_decoder_in_float64(done: Performer, name: str, layout: str) -> None:
    check(done, decoder(name, **LAYOUT_RUNS[layout]))


@pytest.mark.parametrize("parts", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("family", [pytest.param(name, marks=() if name == "ul2" else pytest.mark.slow) for name in MODELS])
def test_a_family_in_float64(done: Performer, marked_corpus: Path, family: str, parts: bool) -> None:
    check(
        done,
        Run(
            tensor=2,
            parts=parts,
            family=family,
            corpus=str(marked_corpus),
            precision="fp64",
            microbatches=2,
            steps=2,
            sequence=32,
            gradients=True,
        ),
    )


@pytest.mark.parametrize("clip", ["value", "adaptive", "zscore"])
@pytest.mark.slow
def test_kinds_of_clipping_and_penalties(done: Performer, clip: Any) -> None:
    check(done, decoder("experts", tensor=2, clip=clip, penalty=1e-3))


@pytest.mark.parametrize("shard", ["none", pytest.param("everything", marks=pytest.mark.slow)])
@pytest.mark.parametrize("optimizer", [pytest.param("muon"), pytest.param("soap", marks=pytest.mark.slow)])
def test_optimizers_of_whole_matrices(done: Performer, optimizer: str, shard: Any) -> None:
    """An owner among all ranks that share a matrix updates it; what tensor ranks hold alike is updated once."""
    world = 1 if shard == "none" else 2
    check(done, decoder("llama", world=world, shard=shard, tensor=4 // world, optimizer=optimizer), 1e-6)


@pytest.mark.slow
def test_float32_losses(done: Performer) -> None:
    run = decoder("llama", tensor=2, precision="fp32", gradients=False, steps=20)
    assert compare(done(run), done(run.alone)).losses < 1e-5


@pytest.mark.slow
def test_recomputed_blocks_call_other_ranks_again(done: Performer) -> None:
    check(done, decoder("capped", tensor=2, parts=True, recompute="block"))


@pytest.mark.slow
@pytest.mark.parametrize("parts", [False, True])
def test_bfloat16_differs_as_two_orders_of_the_same_microbatches_do(done: Performer, parts: bool) -> None:
    run = replace(decoder("llama", tensor=2, parts=parts, precision="bf16", gradients=False), microbatches=12, steps=6)
    expected = done(run.alone)
    orders = [compare(done(replace(run.alone, rotated=first)), expected) for first in (3, 6, 9)]
    assert compare(done(run), expected).losses < 3 * max(order.losses for order in orders)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["optimizer", "gradients"])
def test_zero_stages(done: Performer, layout: str) -> None:
    check(done, decoder("llama", world=2, tensor=2, **LAYOUTS[layout]))
