"""Gradient norm and clipping, without a host synchronisation.

The norm is the global L2 norm over all parameters (Pascanu et al. 2013, arXiv 1211.5063). A gradient is sound
when its sum of squares is finite in float32; anything else (NaN, infinities, 1e38) must not reach a weight or
a moment, and multiplying by zero would not help: 0 * NaN is NaN. So the caller hands `unsound` to the
optimizer's kernel as `found_inf`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def gradient_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Global L2 norm, a float32 scalar on the gradients' device."""
    assert gradients, "there are no gradients: call forward_backward first"
    return torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))


def unsound(*values: Tensor) -> Tensor:
    """1.0 if the square of any of the scalars is not finite in float32, else 0.0; float32 scalar."""
    flat = torch.stack([value.float() for value in values])
    return (~torch.isfinite(flat * flat)).any().float()


def clip(gradients: Sequence[Tensor], norm: Tensor, limit: float) -> None:
    """Scale the gradients in place so that their norm is at most `limit`; unsound ones stay as they are."""
    factor = (limit / norm).clamp(max=1.0)
    if factor.device.type == "cpu" and float(factor) == 1.0:
        return  # multiplying by one changes no bit, and here asking costs nothing
    torch._foreach_mul_(gradients, factor)
