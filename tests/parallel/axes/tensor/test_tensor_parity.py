"""Ranks that divide matrices, and time between them, equal one process: losses, norms, gradients, weights.

The equality matrix (`tests/parallel/layouts.py`) has one model of each family; here are the parts that they lack.
"""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.parallel.axes.tensor.variants import VARIANTS, variant
from tests.parallel.families import MODELS
from tests.parallel.trajectory import LAYOUTS, Result, Run, compare, perform
from tests.ranks import RankServer

Performer = Callable[[Run], Result]
PARTS: dict[str, Any] = {"sequence_parallel": True}
LAYOUT_RUNS: dict[str, dict[str, Any]] = {
    "2": {"tensor": 2},
    "2 parts": {"tensor": 2, **PARTS},
    "4": {"tensor": 4},
    "4 parts": {"tensor": 4, **PARTS},
    "2x2": {"world": 2, "tensor": 2},
    "2x2 everything": {"world": 2, "tensor": 2, **PARTS, **LAYOUTS["everything"]},
}
QUICK = {("capped", "4 parts"), ("mixed", "2"), ("olmo", "2x2 everything")}
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
    difference = compare(done(run), done(run.alone))
    assert max(difference.losses, difference.norms, difference.weights, difference.gradients) < limit, difference


def decoder(name: str, **settings: Any) -> Run:
    """23 positions, which two and four ranks do not divide."""
    common = {"sizes": variant(name), "sequence": 23, "steps": 3, "microbatches": 3, "precision": "fp64"}
    return Run(**{**common, **settings})


@pytest.mark.parametrize(("name", "layout"), EACH)
def test_a_decoder_in_float64(done: Performer, name: str, layout: str) -> None:
    check(done, decoder(name, **LAYOUT_RUNS[layout]))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["2", "2 parts"])
@pytest.mark.parametrize("family", MODELS)
def test_a_family_in_float64(done: Performer, marked_corpus: Path, family: str, layout: str) -> None:
    common: dict[str, Any] = {"family": family, "corpus": str(marked_corpus), "precision": "fp64", "sequence": 32}
    check(done, Run(**common, **LAYOUT_RUNS[layout], microbatches=2, steps=2))


@pytest.mark.slow
@pytest.mark.parametrize("clip", ["value", "adaptive", "zscore"])
def test_kinds_of_clipping_and_penalties(done: Performer, clip: Any) -> None:
    check(done, decoder("experts", tensor=2, clip=clip, penalty=1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["4", "2x2 everything"])
@pytest.mark.parametrize("optimizer", ["muon", "adafactor", "lamb"])
def test_optimizers_of_whole_matrices(done: Performer, optimizer: str, layout: str) -> None:
    """An owner among all ranks that share a matrix updates it; what tensor ranks hold alike is updated once."""
    limit = 1e-6 if optimizer == "muon" else 1e-9  # Muon's products are bfloat16
    check(done, decoder("llama", **LAYOUT_RUNS[layout], optimizer=optimizer), limit)


@pytest.mark.slow
def test_float32_losses(done: Performer) -> None:
    run = decoder("llama", tensor=2, precision="fp32", steps=20)
    assert compare(done(run), done(run.alone)).losses < 1e-5


@pytest.mark.slow
def test_recomputed_blocks_call_other_ranks_again(done: Performer) -> None:
    check(done, decoder("capped", **LAYOUT_RUNS["2 parts"], recompute="block"))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["2", "4 parts"])
def test_bfloat16_is_no_farther_off_than_its_rounding(done: Performer, layout: str) -> None:
    """Each rank rounds its part of a sum: another order of microbatches rounds nothing else, and is no measure."""
    run = decoder("llama", **LAYOUT_RUNS[layout], precision="bf16", microbatches=12, steps=6)
    exact, rounded = (done(Run(**{**vars(run.alone), "precision": each})) for each in ("fp32", "bf16"))
    assert compare(done(run), rounded).losses < 3 * compare(rounded, exact).losses


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["optimizer", "gradients"])
def test_zero_stages(done: Performer, layout: str) -> None:
    check(done, decoder("llama", world=2, tensor=2, **LAYOUTS[layout]))
