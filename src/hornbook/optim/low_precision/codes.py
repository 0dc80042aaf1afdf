"""Tensors as 8-bit codes of a dynamic map, with a scale for each block of neighbours (arXiv 2110.02861).

A code names one of 256 values in [-1, 1] (signed) or [0, 1] (unsigned), which lie denser towards zero: in each of seven
decades as many as the decade's place allows, evenly, so that the error is relative over seven orders of magnitude. A
block is at most `BLOCK` neighbours along the last dim; its scale is its largest magnitude.

One thing differs from the paper: an unsigned value above zero never becomes zero. AdamW divides by the root of the
second moment, and one that is lost makes the update as large as the first moment over eps (the zero-point problem of Li
et al. 2023, arXiv 2309.01507).
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from hornbook.optim.config.adamw_config import BLOCK

DECADES = 7
TINY = float(np.finfo(np.float32).tiny)
"""The smallest normal float32: a block whose largest magnitude is less is stored as zeros."""


@dataclass(frozen=True)
class Grid:
    """The arithmetic of a dynamic map: how a magnitude in [0, 1] becomes the number of a value, 0 for zero.

    Decade d has `first << d` values; with n values it holds the numbers from n - first + 1 on.
    """

    first: int
    """Values of the lowest decade."""
    zero: np.float32
    """Below it a magnitude is zero."""
    one: np.float32
    """From it on a magnitude is 1."""
    limits: tuple[np.float32, ...]
    """The magnitudes where the decades after the first begin."""
    scales: tuple[np.float32, ...]
    """Values of each decade per unit."""

    @property
    def counts(self) -> tuple[np.float32, ...]:
        """Values of each decade."""
        return tuple(np.float32(self.first << decade) for decade in range(DECADES))

    @property
    def last(self) -> int:
        """The number of 1."""
        return (self.first << DECADES) - self.first + 1


NINTH = np.float32(1 / 9)
"""A decade begins at a ninth of its length: it reaches from 0.1 to 1 of its unit."""


@cache
def dynamic_map(signed: bool) -> Tensor:
    """float32 [256], rising: the values of the codes."""
    positive = list[float]()
    for decade in range(7):
        edges = np.linspace(0.1, 1.0, 2 ** (decade if signed else decade + 1) + 1)
        positive += list(10.0 ** (decade - 6) * (edges[:-1] + edges[1:]) / 2)
    values = [*(-x for x in positive if signed), 0.0, *positive, 1.0]
    return torch.tensor(sorted(values), dtype=torch.float32)


@cache
def grid(signed: bool) -> Grid:
    """The arithmetic of `dynamic_map(signed)`: limits lie in the middle between two values, but see above for zero."""
    first = 1 if signed else 2
    values = dynamic_map(signed).numpy()[-(first * (2**DECADES - 1) + 2) :]  # 0, all positive, 1
    middles = (values[1:] + values[:-1]) / 2
    starts = [(first << decade) - first for decade in range(DECADES)]
    scales = tuple(np.float32((first << decade) * 10.0 ** (6 - decade) / 0.9) for decade in range(DECADES))
    zero = middles[0] if signed else np.float32(TINY)
    return Grid(first, np.float32(zero), middles[-1], tuple(middles[start] for start in starts[1:]), scales)


@cache
def _tables(signed: bool, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Counts and scales of `grid`, and `dynamic_map`, on a device; copied there once, without a wait."""
    by = grid(signed)
    host = torch.tensor(by.counts), torch.tensor(by.scales), dynamic_map(signed)
    counts, scales, values = (each.to(device, non_blocking=True) for each in host)
    return counts, scales, values


def encode(x: Tensor, signed: bool) -> Tensor:
    """Codes (uint8) of values in [-1, 1] or [0, 1]: the nearest value, up to rounding."""
    by, size = grid(signed), x.abs()
    decade = sum((size >= float(limit)).int() for limit in by.limits)
    counts, scales, _ = _tables(signed, x.device)
    count = counts[decade]
    inside = size * scales[decade] - count * float(NINTH)
    number = inside.clamp(min=0).minimum(count - 1) + (count - (by.first - 1))
    number = torch.where(size >= float(by.one), float(by.last), number)
    number = torch.where(size >= float(by.zero), number, 0.0).int()
    if signed:
        number = 127 + torch.where(x < 0, -number.clamp(max=127), number)
    return number.to(torch.uint8)


def quantize(x: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """float32 [..., n] -> codes (uint8 [..., n]) and scales (float32 [..., blocks]): |x| at most, by block."""
    blocks = _blocks(x)
    scales = blocks.abs().amax(-1) if x.numel() else x.new_zeros(blocks.shape[:-1])
    scales = torch.where(scales >= TINY, scales, 0.0)
    codes = encode(blocks * torch.where(scales > 0, 1 / scales, 0.0)[..., None], signed)
    return codes.flatten(-2)[..., : x.shape[-1]].contiguous(), scales


def dequantize(codes: Tensor, scales: Tensor, signed: bool) -> Tensor:
    """float32, of the codes' shape: values of `quantize`."""
    values = _tables(signed, codes.device)[2][codes.int()]
    return values * scales.repeat_interleave(BLOCK, -1)[..., : codes.shape[-1]]


def _blocks(x: Tensor) -> Tensor:
    """[..., n] -> [..., blocks, BLOCK], filled up with zeros."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % BLOCK))
    return padded.unflatten(-1, (-1, BLOCK))
