"""Gradient norm and clipping, without a host synchronisation.

The norm is the global L2 norm over all parameters (Pascanu et al. 2013, arXiv 1211.5063). A gradient is sound
when its sum of squares is finite in float32; anything else (NaN, infinities, 1e38) must not reach a weight or
a moment, and multiplying by zero would not help: 0 * NaN is NaN. So the caller hands `unsound` to the
optimizer's kernel as `found_inf`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


def global_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Global L2 norm of gradients that are all here, a float32 scalar on their device."""
    assert gradients, "there are no gradients: call forward_backward first"
    return get_total_norm(gradients)


def unsound(*values: Tensor) -> Tensor:
    """1.0 if the square of any of the scalars is not finite in float32, else 0.0; float32 scalar."""
    flat = torch.stack([value.float() for value in values])
    return (~torch.isfinite(flat * flat)).any().float()


def clip(parameters: Sequence[nn.Parameter], norm: Tensor, limit: float) -> None:
    """Scale the gradients in place by min(1, limit / (norm + 1e-6)), torch's form."""
    if norm.device.type == "cpu" and float(norm) + 1e-6 <= limit:
        return  # multiplying by one changes no bit, and here asking costs nothing
    clip_grads_with_norm_(parameters, limit, norm)
