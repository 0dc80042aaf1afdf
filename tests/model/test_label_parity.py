"""Heads for labels against transformers' classes: text, tokens, spans of each architecture that has them here."""

from pathlib import Path

import pytest
import torch

from tests.model.architectures import LABEL_DRAWS
from tests.model.parity import (
    LENGTH,
    Pair,
    difference,
    exported,
    gradients,
    make_pair,
    our_logits,
    read_as,
    their_logits,
    tokens,
)

pytestmark = pytest.mark.filterwarnings("default::DeprecationWarning")  # of transformers' own imports
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def packed(pair: Pair) -> float:
    """Documents one after the other in a row of ours, each alone in theirs."""
    lengths, ids = (7, 1, 15), tokens(1, LENGTH)
    ours = our_logits(pair.ours, ids, None, [lengths])[0].split(lengths)
    worst = 0.0
    for piece, logits in zip(ids[0].split(lengths), ours, strict=True):
        theirs = their_logits(pair.theirs, piece[None])[0]
        worst = max(worst, difference(read_as(pair.config, logits, theirs), theirs))
    return worst


def padded(pair: Pair) -> float:
    """Documents of several lengths, padded at the right in theirs and alone in ours."""
    lengths, ids, worst = (LENGTH, 9, 17), tokens(3, LENGTH), 0.0
    mask = (torch.arange(LENGTH) < torch.tensor(lengths)[:, None]).long()
    ids = torch.where(mask.bool(), ids, pair.theirs.config.pad_token_id)
    theirs = their_logits(pair.theirs, ids, attention_mask=mask)
    for row, length in enumerate(lengths):
        ours = our_logits(pair.ours, ids[row : row + 1, :length])[0]
        wanted = theirs[row] if theirs.dim() == 2 else theirs[row, :length]
        worst = max(worst, difference(read_as(pair.config, ours, wanted), wanted))
    return worst


def typed(pair: Pair) -> float:
    """Two texts in a row, told apart by token types."""
    ids = tokens(2, LENGTH)
    types = (torch.arange(LENGTH) > 9).long().expand(2, -1) * (pair.config.embedding.types > 1)
    theirs = their_logits(pair.theirs, ids, token_type_ids=types)
    return difference(read_as(pair.config, our_logits(pair.ours, ids, types=types), theirs), theirs)


def check(name: str, seed: int, folder: Path) -> None:
    pair = make_pair(name, seed, folder)
    torch.manual_seed(1)
    found = {}
    for case in (packed, padded, *([typed] if pair.config.embedding.types else []), gradients):
        with torch.no_grad():
            found[case.__name__] = case(pair)
    assert all(each <= TOLERANCE for each in found.values()), found
    assert exported(pair)


@pytest.mark.parametrize("name", LABEL_DRAWS)
def test_outputs_and_gradients_are_theirs_and_what_we_write_is_what_they_saved(name: str, tmp_path: Path) -> None:
    check(name, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("name", LABEL_DRAWS)
def test_more_draws(name: str, seed: int, tmp_path: Path) -> None:
    check(name, seed, tmp_path)
