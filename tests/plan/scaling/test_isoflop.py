"""Runs of equal compute around the best size of a law."""

import pytest

from hornbook.errors import UsageError
from hornbook.model.build import build_model
from hornbook.plan.planner import vocabulary
from hornbook.plan.scaling.isoflop import isoflop_runs
from hornbook.plan.scaling.laws import law_named
from hornbook.settings.resolve import resolve

WORDS = ["train.batch_tokens=4096", "text.tokenizer.vocab=4096"]


def test_curves_have_their_compute_and_models_that_can_be_built() -> None:
    recipe = resolve("tiny", WORDS, environ={}).recipe
    runs, left_out = isoflop_runs(recipe, [3e15, 1e15], 5, 4.0)
    assert left_out == {}
    assert len({run.name for run in runs}) == len(runs) == 10
    for budget, curve in ((1e15, runs[:5]), (3e15, runs[5:])):
        sizes = [run.parameters for run in curve]
        assert sizes == sorted(sizes)
        assert sizes[0] < law_named("besiroglu").best_size(budget) < sizes[-1]
        assert 8 < sizes[-1] / sizes[0] < 32
        for run in curve:
            assert run.operations == pytest.approx(budget, rel=0.02)
            assert run.tokens % 4096 == 0
    given = resolve("tiny", [*WORDS, *runs[0].words()], environ={}).recipe
    assert (given.name, given.train.tokens) == (runs[0].name, runs[0].tokens)
    model = build_model(given.model, vocabulary(given), "meta")
    assert sum(each.numel() for each in model.parameters()) == runs[0].parameters


def test_budgets_too_small_for_three_models_are_refused() -> None:
    recipe = resolve("tiny", WORDS, environ={}).recipe
    with pytest.raises(UsageError, match=r"--compute 1e\+11: . different models are too few.*steps are no training"):
        isoflop_runs(recipe, [1e11], 5, 4.0)
    runs, left_out = isoflop_runs(resolve("tiny", ["train.batch_tokens=128Ki"], {}).recipe, [3e14], 7, 4.0)
    assert len(runs) >= 3
    assert left_out
    assert all("steps are no training" in why for why in left_out.values())
