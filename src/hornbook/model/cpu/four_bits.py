"""Weights from 4-bit codes in one pass: the 16 values of a share are scaled once, and each code picks one of them."""

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from hornbook.kernels.scalar import EXACT, f32, u8
from hornbook.kernels.team import Kernel, launch


def restored(
    codes: UInt8[Tensor, " half"], levels: Float[Tensor, " 16"], scale: Tensor, zero: Tensor | None, size: int
) -> Float[Tensor, " size"]:
    """(level - zero) * scale of each code, two to a byte, where every share holds an even number of them.

    scale, zero: float32, one for each share of consecutive codes; no zero: 0.
    """
    scale = scale.contiguous()
    zero = torch.zeros_like(scale) if zero is None else zero.contiguous()
    y = scale.new_empty(size)
    launch(_kernel, scale.numel(), 0, size // (2 * scale.numel()), codes, levels, scale, zero, y)
    return y


def _restore_shares(first, last, _chunk, a, _values):
    half, codes, levels, scale, zero, y = a[1], u8(a[2]), f32(a[3]), f32(a[4]), f32(a[5]), f32(a[6])
    scaled = np.empty(16, np.float32)
    for share in range(first, last):
        for level in range(16):
            scaled[level] = (levels[level] - zero[share]) * scale[share]
        for place in range(share * half, (share + 1) * half):
            code = codes[place]
            y[2 * place] = scaled[code >> 4]
            y[2 * place + 1] = scaled[code & 15]


_kernel = Kernel(_restore_shares, EXACT)
