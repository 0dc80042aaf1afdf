"""Filters against transformers' own, and the draw against the distribution it is drawn from."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hornbook.errors import DivergedError, UsageError
from hornbook.model.generate.sampling import (
    NUCLEUS,
    REMOVED,
    Sampling,
    TokenCounts,
    choose_token,
    choose_tokens,
    draw,
    filter_logits,
    keyed_uniform,
    penalise,
    score_token,
    score_tokens,
)

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")


def test_a_nucleus_is_never_empty() -> None:
    """Of a probability that float32 rounds to 0, nor of logits that are broken: a server answers its other texts."""
    logits = torch.tensor([[0.0, 2.0, 1.0], [0.0, float("nan"), 1.0]])
    found = filter_logits(logits, [Sampling(top_p=1e-50), Sampling(top_p=0.9)]) != float("-inf")
    assert found.tolist() == [[False, True, False], [True, True, True]]


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
    how = Sampling(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    assert torch.equal(filter_logits(logits, [how, how]), expected)


def test_ties_at_the_last_place_stay_and_one_token_always_does():
    tied = torch.tensor([1.0, 2.0, 2.0, 0.0]).expand(3, 4)
    found = filter_logits(tied, [Sampling(top_k=1), Sampling(top_p=1e-9), Sampling()])
    assert found[0].isfinite().tolist() == [False, True, True, False]
    assert found[1].isfinite().sum() == 1
    assert torch.equal(found[2], tied[2])


def test_a_nucleus_wider_than_what_is_put_in_order_first_is_found_whole():
    logits = torch.randn(3, 4 * NUCLEUS, generator=torch.Generator().manual_seed(1)) * torch.tensor([[1.0], [9.0], [0]])
    found = filter_logits(logits, [Sampling(top_p=0.9)] * 3).isfinite()
    for row, kept in zip(logits, found, strict=True):
        share, order = row.double().softmax(0).sort(descending=True)
        assert set(order[: int(kept.sum())].tolist()) == set(kept.nonzero()[:, 0].tolist()) or row.std() == 0
        assert float(share[: int(kept.sum())].sum()) >= 0.9 > float(share[: int(kept.sum()) - 1].sum())
    assert found[0].sum() > NUCLEUS > found[1].sum()


SETTINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0, 0.3, 1.0, 2.5]),
    top_k=st.sampled_from([0, 1, 7, 400, 10**6]),
    top_p=st.sampled_from([1.0, 0.95, 0.4, 1e-6]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    frequency_penalty=st.sampled_from([0.0, -0.2]),
    seed=st.integers(0, 2**63 - 1),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(SETTINGS, min_size=1, max_size=9), st.integers(0, 10**6), st.sampled_from([1, 5, 300, 1000]))
def test_texts_get_together_the_tokens_that_they_get_alone(samplings, seed, vocab):
    generator = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(len(samplings), vocab, generator=generator)
    made = torch.randint(vocab, (len(samplings), 12), generator=generator).tolist()
    counts = [TokenCounts(row[:6], Counter(row[6:])) for row in made]
    indices = [seed + row for row in range(len(samplings))]
    alone = [choose_token(*each) for each in zip(logits, samplings, indices, counts, strict=True)]
    assert choose_tokens(logits, samplings, indices, counts) == alone
    tops = [row % 4 for row in range(len(samplings))]
    scores = [score_token(*each) for each in zip(logits, alone, tops, strict=True)]
    assert score_tokens(logits, alone, tops) == scores


def test_the_draw_follows_the_distribution():
    logits = torch.tensor([0.0, 1.0, -math.inf, 2.0, -1.0])
    draws = draw(logits.expand(20_000, -1), [keyed_uniform(5, index) for index in range(20_000)])
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
    points = [0.0, 0.25, 0.5, 0.75, math.nextafter(1, 0), 1.0]
    assert draw(logits.expand(len(points), -1), points) == [1, 1, 3, 3, 3, 3]


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_model_that_diverged_draws_nothing(value: float):
    with pytest.raises(DivergedError, match="logits are not finite: take a checkpoint from before"):
        draw(torch.tensor([[0.0, 1.0], [value, value]]), [0.5, 0.5])


def test_uniform_numbers_are_keyed():
    assert keyed_uniform(1, 2) == keyed_uniform(1, 2)
    numbers = {keyed_uniform(seed, index) for seed in range(30) for index in range(30)}
    assert len(numbers) == 900
    assert abs(sum(numbers) / 900 - 0.5) < 4 / math.sqrt(12 * 900)


def test_temperature_zero_is_greedy():
    logits = torch.randn(50, generator=torch.Generator().manual_seed(0))
    best = int(logits.argmax())
    assert choose_token(logits, Sampling(temperature=0), 3, TokenCounts()) == best
    assert choose_token(logits, Sampling(greedy=True, temperature=9), 3, TokenCounts()) == best
    assert choose_token(logits, Sampling(top_k=1), 3, TokenCounts()) == best
    for least in (1e-10, 1e-39, 5e-324):  # logits over the second are infinite, over the third NaN
        assert choose_token(logits, Sampling(temperature=least), 3, TokenCounts()) == best, least


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
        assert torch.equal(penalise(logits[None], [Sampling(repetition_penalty=penalty)], [counts]), wanted)


def test_presence_and_frequency_look_at_what_was_generated():
    logits = torch.zeros(2, 6)
    counts = TokenCounts([0, 1, 2], Counter([2, 3, 3]))
    counts.add(3)
    found = penalise(logits, [Sampling(), Sampling(presence_penalty=0.5, frequency_penalty=0.25)], [counts, counts])
    assert found.tolist() == [[0] * 6, [0, 0, -0.75, -1.25, 0, 0]]
    assert logits.count_nonzero() == 0
    assert penalise(logits, [Sampling()] * 2, [counts] * 2) is logits


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
