"""Runs of equal compute around the best size of a law."""

import re

import pytest

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model
from hornbook.plan.planner import vocabulary
from hornbook.plan.scaling.isoflop import doubts, isoflop_runs
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
    with pytest.raises(UsageError, match=r"--compute 1e\+11: 3 different models are the least.*100 steps") as refused:
        isoflop_runs(recipe, [1e11], 5, 4.0)
    (named,) = re.findall(r"--compute (\S+) has as many", str(refused.value))
    assert len(isoflop_runs(recipe, [float(named)], 5, 4.0)[0]) >= 3
    runs, left_out = isoflop_runs(resolve("tiny", ["train.batch_tokens=128Ki"], {}).recipe, [3e14], 7, 4.0)
    assert len(runs) >= 3
    assert left_out
    assert all("steps are no training" in why for why in left_out.values())


def test_ladders_that_a_fit_would_refuse_are_told_before_they_are_trained() -> None:
    recipe = resolve("tiny", WORDS, environ={}).recipe
    one, _ = isoflop_runs(recipe, [1e15], 5, 4.0)
    (refused,) = doubts(one, 1e12)
    assert "a fit will be refused" in refused
    assert "5 runs of 5 sizes" in refused
    two, _ = isoflop_runs(recipe, [1e15, 3e15], 5, 4.0)
    assert list(doubts(two, 1e12)) == []
    (repeated,) = doubts(two, max(run.tokens for run in two) / 5)
    assert "reads the text 5 times: beyond 4" in repeated


def test_small_ladders_have_models_of_few_different_sizes_no_more() -> None:
    """Widths were multiples of 64: 1e13 operations with a vocabulary of 1,024 had three models, now four."""
    recipe = resolve("tiny", ["train.batch_tokens=2048", "text.tokenizer.vocab=1024"], environ={}).recipe
    runs, _ = isoflop_runs(recipe, [1e13], 5, 4.0)
    assert len(runs) >= 4
