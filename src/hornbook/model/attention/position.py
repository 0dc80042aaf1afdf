"""How order is known: vectors added to the embedding, rotations of queries and keys, or scores by distance.

Rotary positions: Su et al. 2021 (arXiv 2104.09864): pair i of d / 2 turns by the angle position * theta^(-2i/d).
Scores by distance are tables [heads, 2 length - 1] that attention adds to its scores, of key position minus query
position; distance 0 stands in the middle.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hornbook.model.attention.rope_scaling import scaled_frequencies
from hornbook.model.config import position_config as config_position
from hornbook.model.layers.transfer import to_device

Lengths = list[tuple[int, ...]]
"""Per row of a batch the lengths of its documents in order; they sum to the row's length."""


def document_positions(lengths: Lengths, device: torch.device) -> Int[Tensor, "batch time"]:
    """Positions that restart with each document."""
    return torch.stack([torch.cat([torch.arange(n, device=device) for n in row]) for row in lengths])


class LearnedPositions(nn.Module):
    """One vector per position: `weight` [offset + length, width]."""

    role: ClassVar = "position"

    def __init__(self, width: int, cfg: config_position.LearnedPositionsConfig) -> None:
        super().__init__()
        self.offset, self.length = cfg.offset, cfg.length
        self.weight = nn.Parameter(torch.empty(cfg.offset + cfg.length, width))

    def forward(self, positions: Int[Tensor, "rows time"]) -> Float[Tensor, "rows time width"]:
        return nn.functional.embedding(positions + self.offset if self.offset else positions, self.weight)


class SinusoidalPositions(nn.Module):
    """Vaswani et al. 2017, section 3.5: dims 2i and 2i + 1 are sine and cosine of position * 10000^(-2i / width)."""

    def __init__(self, width: int, cfg: config_position.SinusoidalPositionsConfig) -> None:
        super().__init__()
        assert width % 2 == 0
        self.width, self.length = width, cfg.length

    def forward(self, positions: Int[Tensor, "rows time"]) -> Float[Tensor, "rows time width"]:
        pairs = torch.arange(0, self.width, 2, dtype=torch.float32, device=positions.device)
        angles = positions.float()[..., None] * torch.exp(pairs * (-math.log(10_000.0) / self.width))
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)


AddedPositions = LearnedPositions | SinusoidalPositions
"""Vectors added to the embedding; `length` is how many there are."""

Rotation = tuple[Float[Tensor, "rows time half"], Float[Tensor, "rows time half"]]
"""Cosines and sines (float32) of the angles of each position; rows is the batch, or 1 where all rows agree."""
Layout = Literal["half", "interleaved"]
"""Which dims are a pair."""


@dataclass(frozen=True)
class Rope:
    """Angles of rotary positions; holds no parameters and no buffers, so it follows the model to any device.

    Equal ones are one key of `Context.rotations`: angles are computed once per forward, however many layers use them.
    """

    head_dim: int
    """Width of a head, of which the first `rotary_dim` dims turn."""
    cfg: config_position.RopeConfig

    name: str = field(init=False, compare=False, repr=False)
    """All of it in words, by which compiled code finds its angles: it knows no dictionaries of other keys."""

    def __post_init__(self) -> None:
        assert self.rotary_dim % 2 == 0
        object.__setattr__(self, "name", f"{self.head_dim} {self.cfg!r}")

    @property
    def rotary_dim(self) -> int:
        """Number of dims of a head that turn, the first ones."""
        return int(self.head_dim * self.cfg.fraction)

    def rotation(self, positions: Int[Tensor, "rows time"]) -> Rotation:
        """Cosines and sines for the positions."""
        frequencies, factor = scaled_frequencies(self.rotary_dim, self.cfg, positions.device)
        angles = positions.float()[..., None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        return (cos, sin) if factor == 1 else (cos * factor, sin * factor)


def rotate(
    x: Float[Tensor, "batch heads time dim"], rotation: Rotation, layout: Layout = "half"
) -> Float[Tensor, "batch heads time dim"]:
    """Turn pairs of the first dims by their position's angle, computed in float32 (float64 stays); the rest stays.

    Pairs are (x_i, x_{i + d/2}) of the d dims that turn, or neighbours (x_{2i}, x_{2i + 1}) where `interleaved`.
    """
    cos, sin = rotation[0][:, None], rotation[1][:, None]
    rotary, rest = x[..., : 2 * cos.shape[-1]], x[..., 2 * cos.shape[-1] :]
    if layout == "half":
        first, second = rotary.chunk(2, dim=-1)
        rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
    else:
        first, second = rotary.unflatten(-1, (-1, 2)).unbind(-1)
        rotated = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
    rotated = rotated.to(x.dtype)
    return rotated if rest.shape[-1] == 0 else torch.cat((rotated, rest), dim=-1)


class Alibi(nn.Module):
    """Minus slope times distance (arXiv 2108.12409); to a softmax that is BLOOM's slope times key position."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(heads)

    def forward(self, length: int, device: torch.device) -> Float[Tensor, "heads distances"]:
        """Scores of all distances in a sequence of `length`."""
        slopes = to_device(torch.tensor(self.slopes, dtype=torch.float32, device="cpu"), device)
        return -slopes[:, None] * distances(length, device).abs()


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8 k / n) for the k-th of n heads; n not a power of two takes every other slope of 2n for those beyond it."""
    whole = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (k + 1) / whole) for k in range(whole)]
    return slopes + [2 ** (-4 * (2 * k + 1) / whole) for k in range(heads - whole)]


class RelativeBuckets(nn.Module):
    """A learned score for each bucket of distances and head: `weight` [buckets, heads] (Raffel et al. 2019, T5)."""

    role: ClassVar = "position"

    def __init__(self, heads: int, cfg: config_position.RelativeBucketsConfig, bidirectional: bool) -> None:
        super().__init__()
        self.bidirectional, self.max_distance = bidirectional, cfg.max_distance
        self.weight = nn.Parameter(torch.empty(cfg.buckets, heads))

    def forward(self, length: int, device: torch.device) -> Float[Tensor, "heads distances"]:
        """Scores of all distances in a sequence of `length`."""
        buckets = relative_buckets(
            distances(length, device), self.weight.shape[0], self.max_distance, self.bidirectional
        )
        return nn.functional.embedding(buckets, self.weight).T


def relative_buckets(
    distance: Int[Tensor, "*shape"], buckets: int, max_distance: int, bidirectional: bool
) -> Int[Tensor, "*shape"]:
    """T5's buckets of key position minus query position: half for single distances, the rest by their logarithm.

    Where both ways are seen, what comes after has the second half of the buckets; otherwise it shares bucket 0.
    """
    count = buckets // 2 if bidirectional else buckets
    away = distance.abs() if bidirectional else (-distance).clamp(min=0)
    single = count // 2
    # Where a boundary falls depends on float32 rounding, so the order of operations is T5's.
    far = torch.log(away.clamp(min=1).float() / single) / math.log(max_distance / single) * (count - single)
    bucket = torch.where(away < single, away, (single + far.long()).clamp(max=count - 1))
    return bucket + (distance > 0) * count if bidirectional else bucket


def distances(length: int, device: torch.device) -> Int[Tensor, " distances"]:
    """Key position minus query position, from -(length - 1) to length - 1."""
    return torch.arange(1 - length, length, device=device)
