"""Losses, logits and token vectors of a vocabulary that ranks divide."""

import pytest
import torch

from tests.ranks import RankServer

CASES = "tests/parallel/axes/tensor/cases.py"


@pytest.mark.parametrize(("ranks", "tokens"), [(2, 97), (3, 10)])
def test_losses_and_gradients_are_those_of_all_logits(run_ranks: RankServer, ranks: int, tokens: int) -> None:
    """Smoothing, z-loss, soft cap, rows that pad the vocabulary, one of which is a rank's whole part; a logit that is
    minus infinity."""
    for found in run_ranks(f"{CASES}:losses", ranks, tokens):
        assert max(found) < 1e-12


@pytest.mark.parametrize(
    ("name", "settings"), [("llama", {}), pytest.param("neox", {"sequence": True}, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("time", [1, 5])
def test_logits_and_token_losses_of_all_tokens(
    run_ranks: RankServer, name: str, settings: dict[str, bool], time: int
) -> None:
    """For samples and evaluation; a single position leaves a rank without any."""
    (expected,) = run_ranks(f"{CASES}:answers", 1, name, {}, time)
    found = run_ranks(f"{CASES}:answers", 2, name, settings, time)[0]
    for own, each in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(own), torch.tensor(each), rtol=1e-5, atol=1e-5)
