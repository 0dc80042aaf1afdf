"""What encoders and encoder-decoders learn from rows of token ids, the same for all contenders. Imports only torch."""

from dataclasses import dataclass

import torch
from torch import Tensor

MASK, IGNORED, START = 3, -100, 0
TARGET = 114
"""Tokens of a target whose source has 512: 15 % in spans of 3 (Raffel et al. 2019, arXiv 1910.10683, section 3.3)."""


@dataclass(frozen=True)
class Rows:
    """One step's work. `lengths` are the documents of each row."""

    tokens: Tensor
    labels: Tensor
    lengths: list[tuple[int, ...]]
    source: Tensor | None = None


def make(family: str, tokens: Tensor, documents: bool) -> Rows:
    """Rows [rows, sequence + 1] of ids as a step of the family; with `documents` each row is cut into several."""
    tokens = tokens[:, :-1]
    generator = torch.Generator().manual_seed(int(tokens.sum()))
    lengths = [_cut(tokens.shape[1], generator) if documents else (tokens.shape[1],) for _ in tokens]
    if family == "encoder":
        return _masked(tokens, lengths, generator)
    labels = tokens[:, :TARGET].contiguous()
    inputs = torch.cat([torch.full_like(labels[:, :1], START), labels[:, :-1]], 1)
    return Rows(inputs, labels, [(TARGET,)] * len(tokens), tokens.contiguous())


def _masked(tokens: Tensor, lengths: list[tuple[int, ...]], generator: torch.Generator) -> Rows:
    """15 % of each row is chosen; 80 % of it masked, 10 % replaced (Devlin et al. 2018, section 3.1)."""
    count = round(0.15 * tokens.shape[1])
    order = torch.rand(tokens.shape, generator=generator).argsort(1)[:, :count]
    chosen = torch.zeros_like(tokens, dtype=torch.bool).scatter_(1, order, True)
    luck = torch.rand(tokens.shape, generator=generator)
    random = torch.randint(0, int(tokens.max()) + 1, tokens.shape, generator=generator)
    inputs = torch.where(chosen & (luck < 0.8), MASK, torch.where(chosen & (luck > 0.9), random, tokens))
    return Rows(inputs, torch.where(chosen, tokens, IGNORED), lengths)


def _cut(total: int, generator: torch.Generator) -> tuple[int, ...]:
    """Lengths of documents that fill a row: log-uniform between 16 tokens and the row."""
    lengths: list[int] = []
    while (left := total - sum(lengths)) > 0:
        drawn = int(16 * (total / 16) ** float(torch.rand((), generator=generator)))
        lengths.append(left if left - drawn < 16 else drawn)
    return tuple(lengths)


def padded(rows: Rows) -> tuple[Tensor, Tensor, Tensor]:
    """The documents as rows of their own, padded to the longest: (tokens, labels, attention mask)."""
    pieces = [piece for row, cut in zip(rows.tokens, rows.lengths, strict=True) for piece in row.split(cut)]
    labels = [piece for row, cut in zip(rows.labels, rows.lengths, strict=True) for piece in row.split(cut)]
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones_like(piece) for piece in pieces], batch_first=True)
    return pad(pieces, batch_first=True), pad(labels, batch_first=True, padding_value=IGNORED), mask
