"""Experts divided over ranks train as in one process: losses, norms, weights, all gradients after the first step."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

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
"""More experts than few tokens reach."""
FEW_TOKENS: dict[str, Any] = {"expert": 3, "microbatches": 2, "sequence": 2}
"""Two microbatches for three ranks."""


@pytest.fixture(scope="module")
def done(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory) -> Performer:
    """The result of a run; the same run is not done twice."""

    @cache
    def result(run: Run) -> Result:
        return perform(run_ranks, run, tmp_path_factory.mktemp("run") / "weights")

    return result


def run_of(mlp: dict[str, Any], **settings: Any) -> Run:
    """Seven microbatches: with two ranks one has one more, with four three have."""
    common: dict[str, Any] = {"odd": "experts", "precision": "fp64", "microbatches": 7, "sequence": 13, "steps": 2}
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
        (IDLE, FEW_TOKENS),
    ],
    ids=["6 over 2", "6 over 4", "16 over 2, data 2", "capacity", "idle experts, a rank without a microbatch"],
)
def test_in_float64_only_the_last_digits_differ(done: Performer, mlp: dict[str, Any], layout: dict[str, Any]) -> None:
    check(done, run_of(mlp, **layout))


def test_gradients_of_routers_are_those_of_one_process(done: Performer) -> None:
    """torchtitan#2387: they were wrong while losses looked right."""
    run = run_of(SIX, expert=2)
    found, expected = done(run).gradients, done(run.alone).gradients
    routers = [name for name in expected if name.endswith("router.weight")]
    assert len(routers) == 2
    for name in routers:
        assert expected[name].abs().max() > 0
        torch.testing.assert_close(found[name], expected[name], rtol=1e-9, atol=1e-12)


def test_experts_without_a_token_have_gradients_of_zero(done: Performer) -> None:
    """Automodel#2995: on some ranks they had none, so that optimizers and checkpoints differed between ranks."""
    run = run_of(IDLE, **FEW_TOKENS)
    found, expected = done(run).gradients, done(run.alone).gradients
    idle = {name: each.flatten(1).abs().amax(1) == 0 for name, each in expected.items() if name.endswith(".down")}
    assert all(each.any() for each in idle.values())
    assert all(not found[name][each].any() for name, each in idle.items())


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
@pytest.mark.parametrize("optimizer", ["adamw8bit", "adafactor", "lion", "muon", "lamb"])
def test_optimizers(done: Performer, optimizer: str) -> None:
    """Those too that need whole parameters. Not SOAP: another order of microbatches turns its eigenvectors around."""
    check(done, run_of(SIX, expert=2, optimizer=optimizer), 1e-6)


def test_in_float32_losses_agree(done: Performer) -> None:
    run = run_of(SIX, expert=4, precision="fp32", steps=6)
    assert compare(done(run), done(run.alone)).losses < 1e-5
