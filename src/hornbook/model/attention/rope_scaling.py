"""Wavelengths of rotary positions, and how they are stretched for sequences longer than a model was trained on.

Pair i of d / 2 turns by theta^(-2i/d) per position. Each scaling is a function from its config, theta and d to the
frequencies; tests compare them with transformers' `ROPE_INIT_FUNCTIONS`.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hornbook.model.config import position_config as config_position

Frequencies = Float[Tensor, " half"]


def scaled_frequencies(dim: int, cfg: config_position.RopeConfig, device: torch.device) -> tuple[Frequencies, float]:
    """Angle per position of each pair (float32), and the factor of cosines and sines."""
    return _SCALINGS[type(cfg.scaling)](cfg.scaling, float(cfg.theta), dim, device), attention_factor(cfg.scaling)


def attention_factor(scaling: config_position.RopeScaling) -> float:
    """By how much rotated queries and keys grow, each: YaRN sharpens the scores that way."""
    if not isinstance(scaling, config_position.YaRN):
        return 1.0
    if scaling.attention_factor is not None:
        return scaling.attention_factor
    if scaling.mscale and scaling.mscale_all_dim:
        return yarn_mscale(scaling.factor, scaling.mscale) / yarn_mscale(scaling.factor, scaling.mscale_all_dim)
    return yarn_mscale(scaling.factor)


def yarn_mscale(factor: float, weight: float = 1.0) -> float:
    """`0.1 weight ln(factor) + 1` (YaRN, section 3.4); 1 for sequences that are not longer."""
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _frequencies(theta: float, dim: int, device: torch.device) -> Frequencies:
    return 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)


def _ntk(cfg: config_position.NTKScaling, theta: float, dim: int, device: torch.device) -> Frequencies:
    assert dim > 2
    return _frequencies(theta * cfg.factor ** (dim / (dim - 2)), dim, device)


def _yarn(cfg: config_position.YaRN, theta: float, dim: int, device: torch.device) -> Frequencies:
    """Arrives at the interpolated frequency between the pairs that turn `beta_fast` and `beta_slow` times."""

    def pair(turns: float) -> float:
        """The pair (not a whole number) that makes this number of turns over the original length."""
        return dim * math.log(cfg.original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(pair(cfg.beta_fast)), 0), min(math.ceil(pair(cfg.beta_slow)), dim - 1)
    width = high - low or 0.001
    ramp = ((torch.arange(dim // 2, dtype=torch.float32, device=device) - low) / width).clamp(0, 1)
    plain = _frequencies(theta, dim, device)
    return plain / cfg.factor * ramp + plain * (1 - ramp)


def _llama3(cfg: config_position.Llama3Scaling, theta: float, dim: int, device: torch.device) -> Frequencies:
    plain = _frequencies(theta, dim, device)
    turns = cfg.original * plain / (2 * math.pi)
    kept = ((turns - cfg.low) / (cfg.high - cfg.low)).clamp(0, 1)
    return (1 - kept) * plain / cfg.factor + kept * plain


_SCALINGS: dict[type, Callable[[Any, float, int, torch.device], Frequencies]] = {
    config_position.NoScaling: lambda _, *sizes: _frequencies(*sizes),
    config_position.LinearScaling: lambda cfg, *sizes: _frequencies(*sizes) / cfg.factor,
    config_position.NTKScaling: _ntk,
    config_position.YaRN: _yarn,
    config_position.Llama3Scaling: _llama3,
}
