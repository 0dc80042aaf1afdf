"""Drafted text: token for token the text of one token at a time, and in distribution where it is drawn."""

from typing import Any

import pytest
import torch

from hornbook.errors import UsageError
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.generate.generate import generate
from hornbook.model.generate.speculative import Draft, OtherModel, OwnBlocks, Tally, accept_or_replace, speculate
from hornbook.model.heads.mtp import STATES
from hornbook.model.transformer import Transformer

VOCAB = 40
SIZES: dict[str, Any] = {"layers": 2, "width": 32, "heads": 4}
LEARNED = {"position": {"kind": "learned", "length": 24}, "norm": {"kind": "layer"}}


def make_model(random_model: Any, seed: int = 3, **part: Any) -> Transformer:
    model = random_model(ModelConfig.model_validate(SIZES | part), VOCAB, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)  # logits that differ
    return model


@pytest.mark.parametrize("kind", ["sequential", "parallel"])
@pytest.mark.parametrize("more", [{}, LEARNED], ids=["rope", "learned"])
def test_drafting_computes_what_training_does(random_model: Any, kind: str, more: dict[str, Any]) -> None:
    """States of each block behind a text, from caches that were cut several times, against one pass over the text."""
    model = make_model(random_model, mtp={"kind": kind, "depth": 3}, **more)
    text = torch.randint(0, VOCAB, (20,), generator=torch.Generator().manual_seed(2)).tolist()
    drafter, states = OwnBlocks(model), model(torch.tensor([text]))[0][0].detach()
    seen: list[torch.Tensor] = []
    guesses = iter(range(1000))

    def propose(logits: torch.Tensor) -> Draft:
        seen.append(logits)
        return Draft(next(guesses) * 7 % VOCAB, logits)

    before = 0
    with torch.no_grad():
        for end in (1, 2, 5, 6, 9, 13):
            seen.clear()
            drafts = drafter.draft(text[: end + 1], states[before:end], 3, propose)
            before = end
            whole = torch.tensor([[*text[: end + 1], *(draft.token for draft in drafts)]])
            _, auxiliary = model(whole, ahead=True)
            assert model.head is not None
            assert len(seen) == 3
            for ahead, logits in enumerate(seen, 1):
                expected = model.head.logits(auxiliary[f"{STATES}{ahead}"][0, end - 1])
                torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


PENALTIES = {"repetition_penalty": 1.5, "frequency_penalty": 0.3}


@pytest.mark.parametrize(
    ("more", "how"), [({}, {}), (LEARNED, {}), ({"position": {"kind": "rope", "length": 24}}, PENALTIES)]
)
def test_greedy_text_is_that_of_one_token_at_a_time(
    random_model: Any, more: dict[str, Any], how: dict[str, Any]
) -> None:
    model = make_model(random_model, mtp={"kind": "sequential", "depth": 2}, **more)
    small = make_model(random_model, seed=9, layers=1)
    length = 24 if more else None
    options: dict[str, Any] = {"max_tokens": 36, "vocab": VOCAB - 2, "length": length, "greedy": True, **how}
    for prompt in ([5], [7] * 30):
        expected = list(generate(model, prompt, **options))
        for drafter in (OwnBlocks(model), OtherModel(small, 4, length), OtherModel(model, 3, length)):
            tally = Tally()
            assert list(speculate(model, prompt, drafter, tally=tally, **options)) == expected
            assert tally.tokens == 36
            assert tally.passes + tally.taken == 36
    assert tally.taken > 15  # the model itself drafts what it would say


def test_a_draft_is_penalised_for_those_before_it(random_model: Any) -> None:
    """The model repeats itself, which the penalty forbids: drafts of its own are what it says all the same."""
    model, tally = make_model(random_model), Tally()
    assert len(set(generate(model, [5], max_tokens=20, greedy=True))) < 10
    options: dict[str, Any] = {"max_tokens": 20, "greedy": True, "repetition_penalty": 50.0}
    assert len(set(speculate(model, [5], OtherModel(model, 4), tally=tally, **options))) == 20
    assert tally.taken == tally.drafted > 10


def test_a_stop_token_ends_the_text_before_it(random_model: Any) -> None:
    model = make_model(random_model)
    options: dict[str, Any] = {"max_tokens": 40, "greedy": True}
    text = list(generate(model, [5], **options))
    options["stop"] = {text[6]}
    assert list(speculate(model, [5], OtherModel(model, 4), **options)) == list(generate(model, [5], **options))


@pytest.mark.parametrize("seeds", [100, pytest.param(5000, marks=pytest.mark.slow)])
def test_drawn_text_has_the_distribution_of_the_model(random_model: Any, seeds: int) -> None:
    """Pairs of the second and third token by seed, each way: chi-squared of two samples, at 5 sigma; drafts of another
    model are refused often and taken often."""
    model, small = make_model(random_model, layers=1, width=16), make_model(random_model, seed=9, layers=1, width=16)
    options: dict[str, Any] = {"max_tokens": 3, "vocab": 4, "temperature": 0.7, "top_k": 3, "presence_penalty": 0.2}
    counts, tally = torch.zeros(2, 4, 4), Tally()
    for seed in range(seeds):
        plain = list(generate(model, [3, 1], seed=seed, **options))
        drafted = list(speculate(model, [3, 1], OtherModel(small, 2), seed=seed + 10**6, tally=tally, **options))
        for side, text in enumerate((plain, drafted)):
            counts[side, text[1], text[2]] += 1
    assert 0.1 < tally.taken / tally.drafted < 0.95
    first, second = counts.flatten(1)
    there = first + second > 0
    chi = ((first - second).square()[there] / (first + second)[there]).sum()
    degrees = int(there.sum()) - 1
    assert degrees > 3
    assert chi < degrees + 5 * (2 * degrees) ** 0.5


def test_a_refused_draft_is_replaced_by_what_it_had_too_much_of() -> None:
    """The rule alone, against the shares: 8,000 draws, each cell within 5 sigma; and its rate of acceptance."""
    p = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
    q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    draws, taken = torch.zeros(4), 0
    tokens = torch.multinomial(q, 8_000, replacement=True, generator=torch.Generator().manual_seed(0)).tolist()
    for index, token in enumerate(tokens):
        found = accept_or_replace(p, Draft(token, q), 1, index)
        draws[found] += 1
        taken += found == token
    sigma = (p * (1 - p) / 8_000).sqrt()
    assert ((draws / 8_000 - p).abs() <= 5 * sigma).all()
    assert taken / 8_000 == pytest.approx(float(torch.minimum(p, q).sum()), abs=0.03)


def test_what_cannot_draft_says_so(random_model: Any) -> None:
    plain = make_model(random_model)
    with pytest.raises(UsageError, match="no blocks of multi-token prediction"):
        OwnBlocks(plain)
    delta = make_model(random_model, attention={"kind": "delta"})
    with pytest.raises(UsageError, match="delta"):
        list(speculate(delta, [1], OtherModel(plain, 2), max_tokens=3))
    with pytest.raises(UsageError, match="delta"):
        OtherModel(delta, 2)
    encoder = make_model(random_model, kind="encoder", head={"kind": "masked"})
    with pytest.raises(UsageError, match="no decoder"):
        OtherModel(encoder, 2)
