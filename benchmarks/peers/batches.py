"""Rows of tokens as the engine takes them."""

import torch
from torch import Tensor

from hornbook.data.batch import Batch


def make_batch(tokens: Tensor) -> Batch:
    """Rows of one document each, [rows, sequence + 1] ids, every prediction counted."""
    rows, sequence = tokens.shape[0], tokens.shape[1] - 1
    return Batch(
        tokens=tokens[:, :-1],
        targets=tokens[:, 1:],
        weights=torch.ones(rows, sequence),
        positions=torch.arange(sequence).expand(rows, sequence),
        document_lengths=[(sequence,)] * rows,
        samples=torch.arange(rows),
        sources=torch.zeros(rows, dtype=torch.int64),
    )


def cut(tokens: Tensor, micro_batch: int) -> list[Tensor]:
    """The rows of each microbatch."""
    return list(tokens.split(micro_batch))
