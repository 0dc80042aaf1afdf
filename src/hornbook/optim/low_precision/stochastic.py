"""Stochastic rounding of float32 to bfloat16: up or down, with the probabilities that make the mean right.

Rounding to nearest loses every update below half the distance of two neighbours: a weight w in bfloat16 stays where it
is for updates below 2^-9 |w|. A random number of 16 bits added to the 16 that are dropped carries into those that stay
with the right probability (Gupta et al. 2015, arXiv 1502.02551; for AdamW: Zamirai et al. 2020, arXiv 2010.06192).

The bits are a function of (parameter, step, index of the value in the whole parameter), so a resumed run and any
number of ranks draw the same.
"""

import hashlib
from typing import Any

import torch
from torch import Tensor

MASK = 0xFFFFFFFF
SECOND = 0x9E3779B9
"""Added to a value's first word before it is scrambled into its second; times the step, to the key of its parameter."""


Key = tuple[Any, Any]
"""Two keys of 32 bits: numbers, or int64 scalars on a device, so that the host need not wait for the step's number."""


def draw_key(name: str, step: int | Tensor) -> Key:
    """The keys of a parameter's draws at a step."""
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    first, second = (int.from_bytes(half, "little") for half in (digest[:4], digest[4:]))
    mixed = _mix32(first + step * SECOND & MASK)
    return mixed, _mix32(second ^ mixed)


def draws(key: Key, first: int, count: int, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
    """Two words of 32 random bits (int64 [count]) for each of the values from index `first` on."""
    index = torch.arange(first, first + count, device=device)
    word = _mix32(_mix32((index & MASK) ^ key[0]) + key[1] + (index >> 32) & MASK)
    return word, _mix32(word + SECOND & MASK)


def round_stochastically(x: Tensor, bits: Tensor) -> Tensor:
    """float32 -> bfloat16 of the same shape; the low 16 of `bits` (int64) are the draw.

    A finite value becomes one of its two neighbours, an exact one itself; infinities and NaN stay what they are.
    """
    drawn = x.float().view(torch.int32).long() + (bits & 0xFFFF).view(x.shape)
    rounded = (drawn >> 16 << 16).to(torch.int32).view(torch.float32).to(torch.bfloat16)
    return torch.where(x.isnan(), x.to(torch.bfloat16), rounded)


def _mix32(x: Any) -> Any:
    """`hornbook.kernels.scalar.mix32`, of numbers or int64 tensors."""
    x = (x ^ x >> 16) * 0x7FEB352D & MASK
    x = (x ^ x >> 15) * 0x846CA68B & MASK
    return x ^ x >> 16
