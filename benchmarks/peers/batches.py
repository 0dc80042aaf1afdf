"""Rows of tokens as the engine takes them, and one optimizer step over them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hornbook.data.batch import Batch, Source
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.engine import Engine


def batch_of(
    tokens: Tensor,
    targets: Tensor,
    weights: Tensor,
    lengths: list[tuple[int, ...]] | None = None,
    source: Source | None = None,
) -> Batch:
    """A microbatch of rows [rows, sequence], of one document each unless `lengths` gives others."""
    rows, sequence = tokens.shape
    return Batch(
        tokens=tokens,
        targets=targets,
        weights=weights,
        positions=torch.arange(sequence).expand(rows, sequence) if lengths is None else positions(lengths),
        document_lengths=lengths or [(sequence,)] * rows,
        samples=torch.arange(rows),
        sources=torch.zeros(rows, dtype=torch.int64),
        source=source,
    )


def positions(lengths: Sequence[tuple[int, ...]]) -> Tensor:
    """Place of each token in its document."""
    return torch.stack([torch.cat([torch.arange(length) for length in row]) for row in lengths])


def make_batch(tokens: Tensor) -> Batch:
    """Rows of one document each, [rows, sequence + 1] ids, every prediction counted."""
    return batch_of(tokens[:, :-1], tokens[:, 1:], torch.ones(tokens.shape[0], tokens.shape[1] - 1))


def cut(tokens: Tensor, micro_batch: int) -> list[Tensor]:
    """The rows of each microbatch."""
    return list(tokens.split(micro_batch))


def train_step(
    engine: Engine, optimizer: Optimizer, batches: list[Batch], weight: float, key: tuple[int, int] | None = None
) -> float:
    """Make one step with clipping at 1.0; return the loss per token, where `weight` tokens count."""
    engine.zero_gradients()
    losses = engine.forward_backward(batches, weight, key=key)
    engine.clip_gradients(1.0)
    engine.step(optimizer)
    return float(losses["loss"]) / weight
