"""Experts divided over ranks train as in one process: losses, norms, weights, and every gradient after the first step.

Routers are where others went wrong with losses that looked right (torchtitan#2387), and experts without a token had no
gradient on some ranks alone (Automodel#2995): `compare` takes the largest deviation of any parameter's gradient.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.parallel import odd
from tests.parallel.trajectory import Result, Run, compare, perform
from tests.ranks import RankServer

Performer = Callable[[Run], Result]
SIX: dict[str, Any] = odd.EXPERTS
"""Six experts, two active, one shared; they do not divide over four ranks."""
SIXTEEN = {**SIX, "count": 16, "active": 3, "router": {"kind": "softmax", "jitter": 0.1}}
FEW = {**SIX, "capacity": 0.6, "router": {"kind": "switch"}, "active": 1, "shared_hidden": None}
"""Many choices find no room."""
IDLE = {**SIX, "count": 12, "active": 1, "router": {"kind": "softmax", "renormalize": False}, "activation": "gelu"}
"""More experts than a microbatch of few tokens reaches."""


@pytest.fixture(scope="module")
def done(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Performer:
    """The result of a run; the same run is not done twice."""

    @cache
    def result(run: Run) -> Result:
        return perform(run_ranks, run, tmp_path_factory.mktemp("run") / "weights")

    return result


def run_of(mlp: dict[str, Any], **settings: Any) -> Run:
    """Seven microbatches: with two ranks one has one more, with four three have."""
    common: dict[str, Any] = {"odd": "experts", "precision": "fp64", "microbatches": 7, "sequence": 13, "steps": 3}
    return Run(**{**common, "sizes": {"mlp": mlp, "layers": 3}, **settings})


def check(done: Performer, run: Run, limit: float = 1e-9) -> None:
    difference = compare(done(run), done(run.alone))
    assert max(difference.losses, difference.norms, difference.weights, difference.gradients) < limit, difference


@pytest.mark.parametrize(
    ("mlp", "layout"),
    [
        (SIX, {"expert": 2}),
        (SIX, {"expert": 4}),
        (SIXTEEN, {"expert": 2, "world": 2}),
        (FEW, {"expert": 2}),
        (IDLE, {"expert": 3, "microbatches": 2, "sequence": 3}),
    ],
    ids=["6 over 2", "6 over 4", "16 over 2, data 2", "capacity", "idle experts, a rank without a microbatch"],
)
def test_in_float64_only_the_last_digits_differ(done: Performer, mlp: dict[str, Any], layout: dict[str, Any]) -> None:
    check(done, run_of(mlp, **layout))


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["optimizer", "gradients", "everything"])
@pytest.mark.parametrize("recompute", ["none", "block"])
def test_with_sharding_and_recomputed_blocks(done: Performer, shard: str, recompute: str) -> None:
    check(done, run_of(SIX, expert=2, world=2, shard=shard, recompute=recompute, microbatches=5))


def test_recomputed_blocks_send_their_tokens_again(done: Performer) -> None:
    check(done, run_of(SIX, expert=2, recompute="block"))


@pytest.mark.parametrize("clip", ["value", "adaptive", "zscore"])
def test_clipping_and_penalties_see_all_experts(done: Performer, clip: str) -> None:
    check(done, run_of(SIX, expert=2, clip=clip, penalty=0.01))


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adamw8bit", "adafactor", "lion", "muon", "lamb", "soap"])
def test_optimizers(done: Performer, optimizer: str) -> None:
    check(done, run_of(SIX, expert=2, optimizer=optimizer), 1e-6)


def test_in_float32_losses_agree(done: Performer) -> None:
    run = run_of(SIX, expert=4, precision="fp32", steps=6)
    assert compare(done(run), done(run.alone)).losses < 1e-5
