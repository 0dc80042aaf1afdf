"""What each position computes alone: two projections with an activation, or a gated linear unit.

GLU: Shazeer 2020 (arXiv 2002.05202); with `silu` it is SwiGLU.
"""

from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.kernels.team import supports
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.cpu.gate import SwiGLUDown, SwiGLUFunction
from hornbook.model.layers.linear import Linear, fused_linear
from hornbook.model.layers.saved_tensors import applied, cheap


class Blend(NamedTuple):
    """An activation on its way to another (`hornbook.model.mlp.blend`)."""

    before: config_mlp.Activation
    after: config_mlp.Activation
    share: Tensor
    """Share of the other: a float32 scalar, between 0 and 1; a tensor, so that compiled code does not depend on it."""


def activate(x: Tensor, kind: config_mlp.Activation | Blend) -> Tensor:
    """The activation named in the config; `gelu_tanh` is GPT-2's approximation of `gelu`."""
    if isinstance(kind, Blend):
        return torch.lerp(activate(x, kind.before), activate(x, kind.after), kind.share.to(x.dtype))
    match kind:
        case "gelu":
            return cheap(F.gelu, x)
        case "gelu_tanh":
            return cheap(_gelu_tanh, x)
        case "relu":
            return F.relu(x)
        case "relu2":
            return cheap(torch.square, F.relu(x))
        case "silu":
            return cheap(F.silu, x)


def _gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def gated(
    gate_up: Float[Tensor, "*batch double"], kind: config_mlp.Activation | Blend
) -> Float[Tensor, "*batch hidden"]:
    """`activation(gate) * up` of gate and up side by side."""
    if kind == "silu" and supports(gate_up):
        return cheap(applied, SwiGLUFunction, gate_up)
    gate, up = torch.chunk(gate_up, 2, dim=-1)
    return cheap(torch.mul, activate(gate, kind), up)


class MLP(nn.Module):
    """`down(activation(up(x)))`."""

    def __init__(self, width: int, hidden: int, cfg: config_mlp.PlainMLPConfig) -> None:
        super().__init__()
        self.activation: config_mlp.Activation | Blend = cfg.activation
        self.up = Linear(width, hidden, cfg.bias)
        self.down = Linear(hidden, width, cfg.bias)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        return self.down(self.units(x))

    def units(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch hidden"]:
        """The activation of each hidden unit."""
        return activate(self.up(x), self.activation)


class GLU(nn.Module):
    """`down(activation(gate(x)) * up(x))`."""

    beside: ClassVar = ("gate", "up")
    """Layers whose products are one."""

    def __init__(self, width: int, hidden: int, cfg: config_mlp.GLUConfig) -> None:
        super().__init__()
        self.activation: config_mlp.Activation | Blend = cfg.activation
        self.gate = Linear(width, hidden, cfg.bias)
        self.up = Linear(width, hidden, cfg.bias)
        self.down = Linear(hidden, width, cfg.bias)

    def forward(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch width"]:
        gate_up = fused_linear(x, [self.gate, self.up])
        if self.activation == "silu" and self.down.bias is None and self.down.plain and supports(gate_up):
            y = applied(SwiGLUDown, gate_up, self.down.matrix(gate_up.dtype))
            return y if self.down.leave is None else self.down.leave(y)
        return self.down(gated(gate_up, self.activation))

    def units(self, x: Float[Tensor, "*batch width"]) -> Float[Tensor, "*batch hidden"]:
        """The activation of each hidden unit, before `up` multiplies it."""
        return activate(torch.chunk(fused_linear(x, [self.gate, self.up]), 2, dim=-1)[0], self.activation)
