"""Rows divided over ranks against whole rows in one process: attention of every mask, and whole training runs."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from hornbook.parallel.axes.context.context_layout import by_cost, contiguous, head_tail
from tests.parallel.axes.context.cases import CASES
from tests.parallel.trajectory import CLIP, LAYOUTS, Result, Run, compare, perform
from tests.ranks import RankServer

ATTENTION = "tests/parallel/axes/context/cases.py:attention"
FIRST_STEP = "tests/parallel/axes/context/cases.py:first_step"
SHIFTS = "tests/parallel/axes/context/cases.py:shifts"
KEPT = "tests/parallel/axes/context/cases.py:kept_bytes"
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.03}
STEPS = 2
ODD = 23
"""A length that neither two nor four ranks divide."""
Performer = Callable[[Run], Result]


@pytest.fixture(scope="module")
def done(run_ranks: RankServer, tmp_path_factory: pytest.TempPathFactory, marked_corpus: Path) -> Performer:
    """The result of a run; the same run is not done twice."""

    @cache
    def result(run: Run) -> Result:
        return perform(run_ranks, replace(run, corpus=str(marked_corpus)), tmp_path_factory.mktemp("run") / "weights")

    return result


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(3, marks=pytest.mark.slow)])
def test_attention_over_parts_is_attention_over_rows(run_ranks: RankServer, ranks: int) -> None:
    """Results and gradients of queries, keys, values, scores by distance and sinks, on each rank."""
    found = run_ranks(ATTENTION, ranks)
    for rank in found:
        for name, differences in rank.items():
            limit = TOLERANCE[CASES[name.rsplit(", ", 1)[0]].dtype]
            assert max(differences.values()) < limit, (name, differences)


@pytest.mark.parametrize("layout", ["contiguous", "head-tail", "by cost", "short"])
def test_values_of_later_positions_cross_to_other_parts(run_ranks: RankServer, layout: str) -> None:
    """By fewer positions than a span has, and by more; both ways, and of masks."""
    length = 6 if layout == "short" else 37
    costs = torch.arange(length) % 11
    make = {"contiguous": contiguous, "head-tail": head_tail, "short": head_tail}.get(layout)
    parts = by_cost(costs, 3) if make is None else make(3, length)
    for rank in run_ranks(SHIFTS, 3, parts, length, [1, 2, 5]):
        assert rank == [[0.0, 0.0, 0.0]] * 3


CONTEXT = {
    "ring": {"context": 2, "context_kind": "ring"},
    "all-to-all": {"context": 2, "context_kind": "all-to-all"},
}
MODELS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grouped": {"heads": 4, "attention": {"kind": "full", "kv_heads": 2, "dropout": 0.1, "window": 9, "sinks": True}},
    "latent": {
        "attention": {"kind": "latent", "query_rank": 16, "kv_rank": 8, "nope_dim": 8, "rope_dim": 4, "value_dim": 6}
    },
    "alibi": {"position": {"kind": "alibi"}, "attention": {"kind": "full", "softcap": 5.0, "dropout": 0.1}},
    "learned": {"position": {"kind": "learned", "length": 64}, "block": {"kind": "post"}},
}


def run_of(kind: str, **settings: Any) -> Run:
    """Three microbatches of rows that do not divide, in float64."""
    known = {"sequence": ODD, "microbatches": 3, "steps": STEPS, "precision": "fp64", "width": 16}
    return Run(**{**known, **CONTEXT[kind], **settings})


def check(done: Performer, run: Run) -> None:
    expected = done(run.alone)
    assert min(expected.norms) > CLIP or run.family
    difference = compare(done(run), expected)
    assert max(difference.losses, difference.norms, difference.weights, difference.gradients) < 1e-9, difference


@pytest.mark.parametrize("kind", CONTEXT)
@pytest.mark.parametrize("documents", [pytest.param(False, marks=pytest.mark.slow), True])
def test_two_ranks_of_context_are_one_process(done: Performer, kind: str, documents: bool) -> None:
    check(done, run_of(kind, documents=documents, sizes=MODELS["grouped"]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONTEXT)
@pytest.mark.parametrize("model", [name for name in MODELS if name != "grouped"])
def test_every_kind_of_position_and_attention(done: Performer, kind: str, model: str) -> None:
    check(done, run_of(kind, documents=True, sizes=MODELS[model]))


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("ring", {"world": 2}),
        pytest.param("ring", {"context": 4, "sizes": {"heads": 4}}, marks=pytest.mark.slow),
        pytest.param("all-to-all", {"context": 4, "sizes": {"heads": 4}}, marks=pytest.mark.slow),
        pytest.param("all-to-all", {"world": 2, "recompute": "block"}, marks=pytest.mark.slow),
        pytest.param("ring", {"world": 2, **LAYOUTS["everything"]}, marks=pytest.mark.slow),
        pytest.param("ring", {"world": 1, **LAYOUTS["optimizer"]}, marks=pytest.mark.slow),
        pytest.param("ring", {"recompute": "block"}, marks=pytest.mark.slow),
        pytest.param("ring", {"expert": 2, "experts": True}, marks=pytest.mark.slow),
        pytest.param("ring", {"tensor": 2, "sizes": {"heads": 4}}, marks=pytest.mark.slow),
        pytest.param("all-to-all", {"tensor": 2, "sizes": {"heads": 4}}, marks=pytest.mark.slow),
        pytest.param("ring", {"clip": "adaptive", "penalty": 0.01}, marks=pytest.mark.slow),
    ],
)
def test_with_data_parallelism_and_more_ranks(done: Performer, kind: str, settings: dict[str, Any]) -> None:
    check(done, run_of(kind, documents=True, **settings))


@pytest.mark.parametrize("kind", ["ring", pytest.param("all-to-all", marks=pytest.mark.slow)])
def test_statistics_of_experts_are_those_of_whole_rows(done: Performer, kind: str) -> None:
    """Balance and z-loss of rows, and the biases that follow the loads."""
    check(done, run_of(kind, experts=True, world=1 if kind == "ring" else 2))


@pytest.mark.parametrize(
    "family",
    ["t5", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bert", "local", "bart", "ul2", "prefix"))],
)
@pytest.mark.parametrize("kind", ["ring", pytest.param("all-to-all", marks=pytest.mark.slow)])
def test_encoders_and_encoder_decoders(done: Performer, family: str, kind: str) -> None:
    check(done, run_of(kind, family=family, sequence=32, steps=2))


@pytest.mark.parametrize("kind", CONTEXT)
def test_every_gradient_of_the_first_step_and_losses_of_tokens(run_ranks: RankServer, kind: str) -> None:
    """Gradients may cancel in losses and norms; evaluation gives the rows whole, and logits need no parts."""
    settings = {"sequence": ODD, "microbatches": 2, "precision": "fp64", "width": 16, "documents": True}
    settings |= {"sizes": MODELS["grouped"]}
    (expected,) = run_ranks(FIRST_STEP, 1, settings)
    for rank in run_ranks(FIRST_STEP, 2, settings | CONTEXT[kind]):
        assert rank.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(torch.tensor(rank[name]), torch.tensor(value), rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", CONTEXT)
def test_float32_losses(done: Performer, kind: str) -> None:
    run = run_of(kind, precision="fp32", sizes=MODELS["grouped"])
    assert compare(done(run), done(run.alone)).losses < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ring", "all-to-all"])
def test_bytes_kept_for_backward_fall_with_the_number_of_ranks(run_ranks: RankServer, kind: str) -> None:
    """Rows too long for attention's probabilities to be kept: what is kept is proportional to a rank's tokens."""
    (alone,) = run_ranks(KEPT, 1, kind, 2048)
    for ranks in (2, 4):
        for found in run_ranks(KEPT, ranks, kind, 2048):
            assert found < 1.05 * alone / ranks, (ranks, found, alone)
