"""What a model of each family makes of a prompt.

A decoder continues it. An encoder fills its masks. An encoder-decoder reads it as its source and answers. In a prompt
for the last two, sentinels are written as the tokenizer spells them (`<extra_id_0>`), and a mask also as `[MASK]`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.forward_context import Memory
from hornbook.model.transformer import Source, Transformer
from hornbook.text.tokenizer.tokenizer import Tokenizer

MASK = "[MASK]"
"""Means the mask token in prompts, however the tokenizer spells it."""


class Prompt(NamedTuple):
    """What a decoder continues."""

    tokens: list[int]
    memory: Memory | None = None
    """What it answers to, in an encoder-decoder."""


def encode_spelled(tokenizer: Tokenizer, text: str, *, source: bool = False) -> list[int]:
    """Ids of a document whose text may spell masks, sentinels and modes, with its delimiters as in training.

    A document begins with its delimiter and ends with the end token where that is another; the source of an
    encoder-decoder always ends, and has no delimiter that is the end token. White space before a mask is no text, as in
    transformers, and neither is one blank before a sentinel: training hides them with what follows them.
    """
    special = tokenizer.special
    wanted = [special.mask, *special.sentinels, *special.modes.values()]
    spelled = {tokenizer.decode([number]).strip(): number for number in wanted if number is not None}
    spelled |= {} if special.mask is None else {MASK: special.mask}
    pieces = re.split("|".join(f"({re.escape(name)})" for name in spelled), text) if spelled else [text]
    pieces = [piece for piece in pieces if piece]
    delimited = tokenizer.delimiter_id != tokenizer.end_id
    ids = [] if source and not delimited else [tokenizer.delimiter_id]
    for piece, following in zip(pieces, [*pieces[1:], ""], strict=True):
        if piece in spelled:
            ids.append(spelled[piece])
        else:
            next_id = spelled.get(following)
            whole = piece.rstrip() if next_id == special.mask else piece.removesuffix(" ")
            ids += tokenizer.encode(piece if next_id is None else whole)
    return [*ids, tokenizer.end_id] if source or delimited else ids


def encode_prompt(
    model: Transformer,
    tokenizer: Tokenizer,
    text: str,
    start: int | None = None,
    *,
    prefix: Sequence[int] | None = None,
) -> Prompt:
    """What a decoder continues; of an encoder-decoder, the text is the source, `start` its decoder's first token.

    `prefix`: tokens before the text of a decoder, by default the delimiter, as where there is nothing else.
    `start` is by default the padding token, as T5's, or the end token where the tokenizer has none.
    """
    if model.encoder is None:
        ids = tokenizer.encode(text)
        ids = ids if prefix is None else [*prefix, *ids]
        return Prompt([tokenizer.delimiter_id, *ids] if prefix is None or not ids else ids)
    if start is None:
        start = tokenizer.end_id if tokenizer.special.pad is None else tokenizer.special.pad
    with torch.no_grad():
        memory = model.encode(Source(_row(model, encode_spelled(tokenizer, text, source=True))))
    return Prompt([start], memory)


class Filled(NamedTuple):
    """A mask and what could stand there, the likeliest first."""

    position: int
    tokens: list[int]
    probabilities: list[float]

    def describe(self, tokenizer: Tokenizer) -> str:
        """The tokens with their probabilities, for people."""
        pairs = zip(self.tokens, self.probabilities, strict=True)
        return ", ".join(f"{tokenizer.decode([token]).strip()} {share:.0%}" for token, share in pairs)


def fill_masks(model: Transformer, tokens: Sequence[int], mask: int | None, vocab: int, count: int = 5) -> list[Filled]:
    """The `count` likeliest tokens (ids below `vocab`) for each mask, each on its own. Raises UsageError."""
    positions = [position for position, token in enumerate(tokens) if token == mask]
    if mask is None or not positions:
        raise UsageError(f"an encoder fills masks: write {MASK} where a token is missing")
    with torch.no_grad():
        hidden, _ = model(_row(model, tokens))
        assert model.head is not None
        chances = model.head.logits(hidden[0, positions])[:, :vocab].softmax(-1)
    best = chances.topk(min(count, vocab))
    return [
        Filled(position, ids, shares)
        for position, ids, shares in zip(positions, best.indices.tolist(), best.values.tolist(), strict=True)
    ]


def _row(model: Transformer, tokens: Sequence[int]) -> Tensor:
    return torch.tensor([list(tokens)], device=next(model.parameters()).device)
