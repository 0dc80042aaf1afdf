"""Normalisation over the last dim, computed in float32 whatever the dtype of the input.

LayerNorm: Ba et al. 2016 (arXiv 1607.06450). RMSNorm: Zhang and Sennrich 2019 (arXiv 1910.07467). BatchNorm: Ioffe and
Szegedy 2015 (arXiv 1502.03167).
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.kernels.team import supports
from hornbook.model.config import init_config as config_init
from hornbook.model.config.norm_config import BatchNormConfig, LayerNormConfig, OffsetRMSNormConfig, RMSNormConfig
from hornbook.model.cpu.cpu_norm import RMSNormFunction
from hornbook.model.layers.saved_tensors import applied, cheap


def widened(x: Tensor) -> Tensor:
    """The same values in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class LayerNorm(nn.Module):
    """`(x - mean) / sqrt(variance + eps) * weight + bias`."""

    role: ClassVar = "norm"

    def __init__(self, width: int, cfg: LayerNormConfig) -> None:
        super().__init__()
        self.eps = cfg.eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if cfg.bias else None

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        # Not torch's mixed kernel (bfloat16 beside float32 weights): its weight gradients are a few percent off.
        return cheap(_layer_norm, cheap(widened, x), self.weight, self.bias, self.eps, x.dtype)


def _layer_norm(wide: Tensor, weight: Tensor, bias: Tensor | None, eps: float, dtype: torch.dtype) -> Tensor:
    return F.layer_norm(wide, weight.shape, widened(weight), None if bias is None else widened(bias), eps).to(dtype)


class RMSNorm(nn.Module):
    """`x / sqrt(mean(x^2) + eps) * weight`."""

    role: ClassVar = "norm"

    def __init__(self, width: int, cfg: RMSNormConfig | OffsetRMSNormConfig) -> None:
        super().__init__()
        self.eps = cfg.eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return rms_norm(x, self.weight, self.eps)


class OffsetRMSNorm(RMSNorm):
    """`x / sqrt(mean(x^2) + eps) * (1 + weight)`: weights begin at 0 and decay pulls the factor to 1 (Gemma)."""

    initial: ClassVar = {"weight": config_init.ConstantValues(value=0.0)}

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return rms_norm(x, 1 + self.weight, self.eps)


def rms_norm(
    x: Float[Tensor, "*batch width"], weight: Float[Tensor, " width"], eps: float
) -> Float[Tensor, "*batch width"]:
    """`x / sqrt(mean(x^2) + eps) * weight`, in the dtype of x."""
    if supports(x):
        return cheap(applied, RMSNormFunction, x, weight, eps)
    return cheap(_rms_norm, cheap(widened, x), weight, eps, x.dtype)


def _rms_norm(wide: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    return F.rms_norm(wide, weight.shape, widened(weight), eps).to(dtype)


class BatchNorm(nn.Module):
    """Each feature normalised over batch and time, in training and in evaluation by the batch at hand.

    It keeps no running statistics: it is there to be compared with, and shows what is wrong with it. What a position
    gets depends on all others of the batch, later ones too, so a causal model is refused.
    """

    role: ClassVar = "norm"

    def __init__(self, width: int, cfg: BatchNormConfig) -> None:
        super().__init__()
        self.eps = cfg.eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        wide = widened(x)
        variance, mean = torch.var_mean(wide, dim=tuple(range(x.dim() - 1)), correction=0)
        return ((wide - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias).to(x.dtype)
