"""Initial values, per logical matrix: each tensor's numbers are a pure function of (seed, its name).

| parameter | scaled_normal |
|---|---|
| embedding, head | N(0, std) |
| learned positions | N(0, position_std) |
| query, key, value, gate, up | N(0, std) |
| out, down: what writes to the residual stream | N(0, std / sqrt(2 layers)) |
| norm weights | 1 |
| biases | 0 |

The scaling of residual outputs is GPT-2's (Radford et al. 2019, section 2.3): 2 x layers of them add up in the stream,
so its variance stays of order one at any depth.
"""

import hashlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from hornbook.model.build import parameter_roles
from hornbook.model.config import ModelConfig

RESIDUAL_OUTPUTS = ("out", "down")
"""Names of the projections that write to the residual stream."""


def initialize(model: nn.Module, cfg: ModelConfig, seed: int) -> None:
    """Fill every parameter of a materialised model in place."""
    with torch.no_grad():
        for name, value in initial_values(model, cfg, seed):
            model.get_parameter(name).copy_(value)


def initial_values(model: nn.Module, cfg: ModelConfig, seed: int) -> Iterator[tuple[str, Tensor]]:
    """Name and initial values (float32, CPU) of every parameter, one at a time; the model may be on meta or cut."""
    roles = parameter_roles(model)
    for name, parameter in model.named_parameters():
        yield name, initial_value(name, roles[name], tuple(parameter.shape), cfg, seed)


def initial_value(name: str, role: str, shape: tuple[int, ...], cfg: ModelConfig, seed: int) -> Tensor:
    """Values of one parameter (float32, CPU), whatever else there is: another order or mesh gives the same."""
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if role == "norm":
        return torch.ones(shape)
    generator = torch.Generator().manual_seed(name_seed(seed, name))
    return torch.empty(shape).normal_(0.0, standard_deviation(name, role, cfg), generator=generator)


def standard_deviation(name: str, role: str, cfg: ModelConfig) -> float:
    """Standard deviation of a parameter's initial values, by the table above."""
    if role == "position":
        return cfg.init.position_std
    if role == "matrix" and name.split(".")[-2] in RESIDUAL_OUTPUTS:
        return cfg.init.std / math.sqrt(2 * cfg.layers)
    return cfg.init.std


def name_seed(seed: int, name: str) -> int:
    """63 bits of a hash of (seed, name)."""
    digest = hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def check_ranges(model: nn.Module) -> list[str]:
    """Warnings about values no training should start from: non-finite, all zero, or of an improbable size."""
    roles, warnings = parameter_roles(model), []
    for name, parameter in model.named_parameters():
        values = parameter.detach().float()
        if not bool(torch.isfinite(values).all()):
            warnings.append(f"{name} has values that are not finite")
        elif name.endswith(".bias"):
            if float(values.abs().max()) > 10:
                warnings.append(f"{name} reaches {float(values.abs().max()):.3g}")
        elif not bool(values.any()):
            warnings.append(f"{name} is all zero")
        elif roles[name] != "norm" and not 1e-5 < float(values.std()) < 1:
            warnings.append(f"{name} has a standard deviation of {float(values.std()):.3g}")
        elif roles[name] == "norm" and not 1e-3 < float(values.abs().max()) < 1e3:
            warnings.append(f"{name} reaches {float(values.abs().max()):.3g}")
    return warnings
