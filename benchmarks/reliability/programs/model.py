"""The model that programs of peers train. It needs torch alone: peers have interpreters of their own."""

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class Shape:
    """Sizes of a small causal transformer and of its batches."""

    vocabulary: int
    sequence: int
    rows: int
    layers: int
    width: int
    heads: int
    dropout: float = 0.0


class Transformer(nn.Module):
    """Learned positions, blocks with norms in front, a head of its own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.embedding, self.positions = nn.Embedding(shape.vocabulary, width), nn.Embedding(shape.sequence, width)
        block = nn.TransformerEncoderLayer(
            width, shape.heads, 4 * width, shape.dropout, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(block, shape.layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, shape.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The loss of the next token, a mean over all; ids: (rows, sequence)."""
        inputs = ids[:, :-1]
        hidden = self.embedding(inputs) + self.positions(torch.arange(inputs.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(inputs.shape[1])
        logits = self.head(self.blocks(hidden, mask=mask, is_causal=True))
        return nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
