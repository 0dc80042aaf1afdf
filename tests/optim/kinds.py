"""Every optimizer of the package, taken from the union that recipes choose from: later ones join by themselves."""

from typing import Any, get_args

import torch
from pydantic import TypeAdapter
from torch import Tensor
from torch.nn import Parameter

from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AnyOptimizer
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.optimizer import Optimizer

KINDS: tuple[str, ...] = tuple(each.model_fields["kind"].default for each in get_args(get_args(AnyOptimizer)[0]))
"""The value of `optim.kind` of each."""
SETTINGS: dict[str, list[dict[str, Any]]] = {
    "adamw": [{"state": "bf16"}],
    "adamw8bit": [{"min_values": 1}],
    "sgd": [{"momentum": 0.0}, {"nesterov": True}],
    "rmsprop": [{"momentum": 0.9, "centered": True}],
    "adafactor": [{"beta1": 0.9}, {"relative_step": False, "lr": 1e-2}],
}
"""Settings that keep other state, or take another path, besides the defaults."""
CASES = [(kind, more) for kind in KINDS for more in ({}, *SETTINGS.get(kind, []))]
"""(kind, settings): every kind with its defaults, and some with more."""
IDS = [" ".join([kind, *more]) for kind, more in CASES]
SHAPES: dict[str, tuple[int, ...]] = {"a.weight": (8, 6), "a.bias": (8,), "experts": (3, 4, 5)}
ROLES = {"a.weight": "matrix", "a.bias": "vector", "experts": "matrix"}
_OPTIMIZERS: TypeAdapter[OptimizerConfig] = TypeAdapter(AnyOptimizer)


def config_of(kind: str, **settings: Any) -> OptimizerConfig:
    """The settings of an optimizer, at its defaults but for `settings`."""
    return _OPTIMIZERS.validate_python({"kind": kind, **settings})


def make(config: OptimizerConfig, seed: int = 0) -> tuple[dict[str, Parameter], Optimizer]:
    """A matrix, a vector and three experts with random values, and their optimizer."""
    generator = torch.Generator().manual_seed(seed)
    named = {name: Parameter(torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()}
    return named, build_optimizer(named, ROLES, config)


def step(named: dict[str, Parameter], optimizer: Optimizer, seed: int, flag: Tensor | None = None) -> None:
    """An update by random gradients; `flag` as in `Optimizer.step`."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in named.values():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
    optimizer.step(flag)


def everything(named: dict[str, Parameter], optimizer: Optimizer) -> dict[str, Tensor]:
    """Copies of parameters and state."""
    state = {f"{name}.{each.name}": tensor for name, each, tensor in optimizer.state()}
    return {name: tensor.detach().clone() for name, tensor in (named | state).items()}


def same_bits(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Whether all values have the same bits, those that are not numbers too."""
    return a.keys() == b.keys() and all(_bits(a[name]).equal(_bits(b[name])) for name in a)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1).contiguous().view(torch.uint8)
