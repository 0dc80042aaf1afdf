"""Filters against transformers' own, and the draw against the distribution it is drawn from."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.errors import UsageError
from hornbook.model.generate.sampling import (
    REMOVED,
    Sampling,
    TokenCounts,
    choose_token,
    draw,
    filter_logits,
    keyed_uniform,
    penalise,
    score_token,
)

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(1, 60),
    temperature=st.floats(0.1, 5),
    top_k=st.integers(0, 70),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
)
def test_filters_are_those_of_transformers(seed, vocab, temperature, top_k, top_p, min_p):
    from transformers.generation.logits_process import (
        MinPLogitsWarper,
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    logits = 3 * torch.randn(2, vocab, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        expected = TopKLogitsWarper(top_k)(None, expected)
    if top_p < 1:
        expected = TopPLogitsWarper(top_p)(None, expected)
    if min_p:
        expected = MinPLogitsWarper(min_p)(None, expected)
    found = filter_logits(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert torch.equal(found, expected)


def test_ties_at_the_last_place_stay_and_one_token_always_does():
    tied = torch.tensor([1.0, 2.0, 2.0, 0.0])
    assert filter_logits(tied, top_k=1).isfinite().tolist() == [False, True, True, False]
    assert filter_logits(tied, top_p=1e-9).isfinite().sum() == 1
    assert torch.equal(filter_logits(tied), tied)


def test_the_draw_follows_the_distribution():
    logits = torch.tensor([0.0, 1.0, -math.inf, 2.0, -1.0])
    draws = [draw(logits, keyed_uniform(5, index)) for index in range(20_000)]
    counts = torch.bincount(torch.tensor(draws), minlength=5).double()
    expected = 20_000 * logits.double().softmax(0)
    assert counts[2] == 0
    kept = expected > 0
    chi_square = float(((counts - expected)[kept] ** 2 / expected[kept]).sum())
    assert (
        chi_square < 21.1
    )  # 99.97% of chi-square with 3 degrees of freedom; the draw is keyed, so it is always the same


def test_the_draw_never_leaves_what_the_filter_left():
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    assert [draw(logits, u) for u in (0.0, 0.25, 0.5, 0.75, math.nextafter(1, 0))] == [1, 1, 3, 3, 3]


def test_uniform_numbers_are_keyed():
    assert keyed_uniform(1, 2) == keyed_uniform(1, 2)
    numbers = {keyed_uniform(seed, index) for seed in range(30) for index in range(30)}
    assert len(numbers) == 900
    assert abs(sum(numbers) / 900 - 0.5) < 4 / math.sqrt(12 * 900)


def test_temperature_zero_is_greedy():
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0))
    best = int(logits.argmax())
    assert choose_token(logits, Sampling(temperature=0), 3) == best
    assert choose_token(logits, Sampling(greedy=True, temperature=9), 3) == best
    assert choose_token(logits, Sampling(top_k=1), 3) == best
    for least in (1e-10, 1e-39, 5e-324):  # logits over the second are infinite, over the third NaN
        assert choose_token(logits, Sampling(temperature=least), 3) == best, least


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 10**6), st.floats(0.3, 3), st.lists(st.integers(0, 19), max_size=12))
def test_the_repetition_penalty_is_that_of_transformers(seed, penalty, text):
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    logits = 3 * torch.randn(20, generator=torch.Generator().manual_seed(seed))
    wanted = logits.clone()[None]
    if text:
        wanted = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([text]), wanted)
    for cut in (0, len(text) // 2, len(text)):
        counts = TokenCounts(text[:cut], Counter(text[cut:]))
        assert torch.equal(penalise(logits, Sampling(repetition_penalty=penalty), counts), wanted[0])


def test_presence_and_frequency_look_at_what_was_generated():
    logits = torch.zeros(6)
    counts = TokenCounts([0, 1, 2], Counter([2, 3, 3, 3]))
    found = penalise(logits, Sampling(presence_penalty=0.5, frequency_penalty=0.25), counts)
    assert found.tolist() == [0, 0, -0.75, -1.25, 0, 0]
    assert logits.count_nonzero() == 0
    assert penalise(logits, Sampling(), counts) is logits


def test_scores_are_log_probabilities_of_the_model():
    logits = torch.tensor([0.0, 1.0, 2.0, REMOVED])
    score = score_token(logits, 1, 9)
    assert [token for token, _ in score.top] == [2, 1, 0]
    assert score.log_probability == dict(score.top)[1]
    assert sum(math.exp(value) for _, value in score.top) == pytest.approx(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1},
        {"temperature": math.nan},
        {"top_k": -1},
        {"top_p": 0},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0},
        {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf},
        {"seed": -1},
    ],
)
def test_settings_without_meaning_are_refused(wrong):
    with pytest.raises(UsageError, match=next(iter(wrong)).replace("_", "-")):
        Sampling(**wrong)
