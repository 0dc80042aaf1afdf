"""New tokens for a trained model: each begins as the mean of the pieces that its text had until now.

New rows of embedding and head are the mean of the old rows of those pieces (so a new token is predicted about as its
pieces were, and read as their average). Old rows keep their bits, hence text without new tokens gives the old logits.
New ids follow the old ones, first into rows that padding held; no row is made that has no token, for its logit
would be far from those that were trained.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.text.tokenizer.tokenizer import Tokenizer

ROWS = ("embedding.weight", "head.weight", "head.bias")
"""Parameters that have a row for each token."""


def write_extended_tokenizer(old: Path, tokens: Sequence[str], folder: Path) -> None:
    """Write tokenizer.json of the old one with new tokens after its ids.

    Raises UsageError for a token that is empty, given twice or there already.
    """
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(old / "tokenizer.json"))
    known = tokenizer.get_vocab(with_added_tokens=True)
    for number, token in enumerate(tokens):
        if not token.strip():
            raise UsageError(f"new token {number + 1} is empty")
        if token in known or token in tokens[:number]:
            raise UsageError(f"new token {number + 1}, {token!r}, is there already")
    tokenizer.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in tokens])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))


def pieces_of(tokens: Sequence[str], old: Tokenizer) -> list[list[int]]:
    """What each new token's text was until now, as old ids. Raises UsageError for one that was nothing."""
    pieces = [old.encode(token) for token in tokens]
    for token, each in zip(tokens, pieces, strict=True):
        if not each:
            raise UsageError(f"the new token {token!r} has no pieces to begin as: the tokenizer drops its text")
    return pieces


def extended(
    tensors: Iterable[tuple[str, Tensor]], known: int, pieces: Sequence[Sequence[int]], vocab: int
) -> Iterator[tuple[str, Tensor]]:
    """The stream of parameters with rows for new tokens, whose ids begin at `known`; `vocab` rows in all."""
    for name, tensor in tensors:
        yield name, extended_rows(tensor, known, pieces, vocab) if name in ROWS else tensor


def extended_rows(rows: Tensor, known: int, pieces: Sequence[Sequence[int]], vocab: int) -> Tensor:
    """[rows, ...] -> [vocab, ...]: old rows up to `known`, means of pieces, then what is left of the old ones."""
    means = [rows[torch.tensor(list(each))].mean(0, keepdim=True) for each in pieces]
    return torch.cat([rows[:known], *means, rows[known + len(means) : vocab]])
