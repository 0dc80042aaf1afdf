"""How order is known: learned vectors added to the embedding, or rotations of queries and keys.

Rotary positions: Su et al. 2021 (arXiv 2104.09864), half-rotation layout: dim i turns with dim i + d/2 (as the
Hugging Face LLaMA), by the angle position * theta^(-2i/d).
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model import config

Lengths = list[tuple[int, ...]]
"""Per row of a batch the lengths of its documents in order; they sum to the row's length."""


def document_positions(lengths: Lengths, device: torch.device) -> Int[Tensor, "batch time"]:
    """Positions that restart with each document."""
    return torch.stack([torch.cat([torch.arange(n, device=device) for n in row]) for row in lengths])


class LearnedPositions(nn.Module):
    """One vector per position: `weight` [length, width]."""

    def __init__(self, width: int, cfg: config.LearnedPositions) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(cfg.length, width))

    def forward(self, positions: Int[Tensor, "rows time"]) -> Float[Tensor, "rows time width"]:
        return nn.functional.embedding(positions, self.weight)


Rotation = tuple[Float[Tensor, "rows time half"], Float[Tensor, "rows time half"]]
"""Cosines and sines (float32) of the angles of each position; rows is the batch, or 1 where all rows agree."""


class Rope:
    """Angles of rotary positions; holds no parameters and no buffers, so it follows the model to any device."""

    def __init__(self, head_dim: int, cfg: config.Rope) -> None:
        assert head_dim % 2 == 0
        self.head_dim, self.theta = head_dim, float(cfg.theta)

    def rotation(self, positions: Int[Tensor, "rows time"]) -> Rotation:
        """Cosines and sines for the positions."""
        angles = positions.float()[..., None] * _frequencies(self.head_dim, self.theta, positions.device)
        return angles.cos(), angles.sin()


def _frequencies(head_dim: int, theta: float, device: torch.device) -> Float[Tensor, " half"]:
    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)


def rotate(x: Float[Tensor, "batch heads time dim"], rotation: Rotation) -> Float[Tensor, "batch heads time dim"]:
    """Turn each pair (x_i, x_{i + d/2}) by its position's angle; computed in float32 (float64 stays)."""
    cos, sin = rotation[0][:, None], rotation[1][:, None]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def check_length(positions_end: int, length: int) -> None:
    """Learned positions end; a longer row is the user's error."""
    if positions_end > length:
        raise UsageError(f"{positions_end} positions asked for, but the model has learned only {length} of them")
