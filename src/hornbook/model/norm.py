"""Normalisation over the last dim, computed in float32 whatever the dtype of the input.

LayerNorm: Ba et al. 2016 (arXiv 1607.06450). RMSNorm: Zhang and Sennrich 2019 (arXiv 1910.07467).
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.model import config
from hornbook.model.cpu.norm import RMSNormFunction
from hornbook.model.cpu.team import supports


def widened(x: Tensor) -> Tensor:
    """The same values in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class LayerNorm(nn.Module):
    """`(x - mean) / sqrt(variance + eps) * weight + bias`."""

    def __init__(self, width: int, cfg: config.LayerNorm) -> None:
        super().__init__()
        self.eps = cfg.eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if cfg.bias else None

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        # Not torch's mixed kernel (bfloat16 beside float32 weights): its weight gradients are a few percent off.
        return F.layer_norm(widened(x), self.weight.shape, self.weight, self.bias, self.eps).to(x.dtype)


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight`."""

    def __init__(self, width: int, cfg: config.RMSNorm) -> None:
        super().__init__()
        self.eps = cfg.eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        if supports(x):
            y = RMSNormFunction.apply(x, self.weight, self.eps)
            assert isinstance(y, Tensor)
            return y
        return F.rms_norm(widened(x), self.weight.shape, self.weight, self.eps).to(x.dtype)
