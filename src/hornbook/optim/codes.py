"""Tensors as 8-bit codes of a dynamic map, with a scale for each block of neighbours (arXiv 2110.02861).

A code names one of 256 values in [-1, 1] (signed) or [0, 1] (unsigned), which lie denser towards zero: in each of seven
decades as many as the decade's place allows, evenly, so that the error is relative over seven orders of magnitude. A
block is at most `BLOCK` neighbours along the last dim; its scale is its largest magnitude.

One thing differs from the paper: an unsigned value above zero never becomes zero. AdamW divides by the root of the
second moment, and one that is lost makes the update as large as the first moment over eps (the zero-point problem of Li
et al. 2023, arXiv 2309.01507).
"""

from functools import cache

import numpy as np
import torch
from torch import Tensor

from hornbook.optim.config.adamw_8bit import BLOCK

SHIFTS = {True: 17, False: 16}
"""Bits of a float32 that its bucket ignores, by signedness: as many as leave one boundary to a bucket at most."""
LOWEST = 105 << 23
"""Bits of 2^-22: all below is one bucket."""
ONE = 127 << 23
"""Bits of 1.0."""
LEAST = {True: 0, False: 1 << 23}
"""Bits of the least magnitude that is not zero, by signedness: unsigned, the smallest normal number."""


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
def boundaries(signed: bool) -> Tensor:
    """float32 [256]: from boundaries[c] on a value has a code above c; the last is infinite."""
    values = dynamic_map(signed)
    middles = (values[1:] + values[:-1]) / 2
    if not signed:
        middles[0] = torch.finfo(torch.float32).tiny
    return torch.cat([middles, torch.tensor([torch.inf])])


@cache
def buckets(signed: bool) -> Tensor:
    """int32 [buckets]: how values of a bucket get their code, for kernels that compute what `encode` says.

    The bucket of x in [-1, 1] is `max(bits of |x|, LOWEST) - LOWEST >> shift`; of negative ones, behind all others. An
    entry is `code << 20 | bound`: the code of the value next to zero. Those whose ignored bits are `bound` or more have
    the next code away from zero. Unsigned values below `LEAST[signed]`, as bits, have code 0.
    """
    width = 1 << SHIFTS[signed]
    starts = np.arange(LOWEST, ONE + 1, width, dtype=np.int64)
    edges = boundaries(signed).numpy()
    codes = np.searchsorted(edges, _floats(starts), side="right")
    entries = codes << 20 | np.minimum(_bits(edges[np.minimum(codes, 255)]) - starts, width)
    if signed:
        codes = np.searchsorted(edges, -_floats(starts), side="right")
        bounds = np.where(codes > 0, _bits(-edges[np.maximum(codes - 1, 0)]) - starts + 1, width)
        entries = np.concatenate([entries, codes << 20 | np.minimum(bounds, width)])
    return torch.from_numpy(entries.astype(np.int32))


def _floats(bits: np.ndarray) -> np.ndarray:
    return bits.astype(np.uint32).view(np.float32)


def _bits(floats: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(floats).view(np.uint32).astype(np.int64)


def encode(x: Tensor, signed: bool) -> Tensor:
    """Codes (uint8) of values in [-1, 1] or [0, 1]: the nearest value, in the middle the upper one."""
    edges = boundaries(signed).to(x.device)
    return torch.bucketize(x, edges[:-1], right=True, out_int32=True).to(torch.uint8)


def quantize(x: Tensor, signed: bool) -> tuple[Tensor, Tensor]:
    """float32 [..., n] -> codes (uint8 [..., n]) and scales (float32 [..., blocks]): |x| at most, by block."""
    blocks = _blocks(x)
    scales = blocks.abs().amax(-1) if x.numel() else x.new_zeros(blocks.shape[:-1])
    codes = encode(blocks / torch.where(scales > 0, scales, 1.0)[..., None], signed)
    return codes.flatten(-2)[..., : x.shape[-1]].contiguous(), scales


def dequantize(codes: Tensor, scales: Tensor, signed: bool) -> Tensor:
    """float32, of the codes' shape: values of `quantize`."""
    values = dynamic_map(signed).to(codes.device)[codes.int()]
    return values * scales.repeat_interleave(BLOCK, -1)[..., : codes.shape[-1]]


def _blocks(x: Tensor) -> Tensor:
    """[..., n] -> [..., blocks, BLOCK], filled up with zeros."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[-1] % BLOCK))
    return padded.unflatten(-1, (-1, BLOCK))
