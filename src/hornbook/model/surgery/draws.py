"""Random first values, keyed by seed and name: no order, mesh or device changes them."""

import torch
from torch import Tensor

from hornbook.model.init.init import name_seed


def keyed_uniform(shape: tuple[int, ...], bound: float, seed: int, name: str) -> Tensor:
    """U(-bound, bound), a pure function of (seed, name)."""
    generator = torch.Generator().manual_seed(name_seed(seed, name))
    return torch.empty(shape).uniform_(-bound, bound, generator=generator)


def keyed_normal(shape: tuple[int, ...], std: float, seed: int, name: str) -> Tensor:
    """N(0, std), a pure function of (seed, name)."""
    generator = torch.Generator().manual_seed(name_seed(seed, name))
    return torch.empty(shape).normal_(0.0, std, generator=generator)
