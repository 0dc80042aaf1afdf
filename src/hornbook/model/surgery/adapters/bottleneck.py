"""Bottleneck adapters (Houlsby et al. 2019, arXiv 1902.00751): y + up(gelu(down(y))) after a frozen projection.

`up` begins at zero, so the first step computes what the base computes.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.config import surgery_config as config
from hornbook.model.layers.linear import Linear
from hornbook.model.surgery.added import Added, keyed_uniform, matching_linears


class Bottleneck(Added):
    """Down to `inner` values, GELU, and up again: it reads all outputs of its layer."""

    cuts: ClassVar = {1: dict.fromkeys(("down.weight", "down.bias", "up.weight", "up.bias"))}

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.down, self.up = Linear(width, inner, bias=True), Linear(inner, width, bias=True)

    def forward(self, layer: Linear, x: Tensor, y: Float[Tensor, "*batch outputs"]) -> Float[Tensor, "*batch outputs"]:
        del layer, x
        return y + self.up(F.gelu(self.down(y)))

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        del weight
        shape = self.down.weight.shape
        yield "down.weight", keyed_uniform(tuple(shape), shape[1] ** -0.5, seed, f"{name}.down.weight")
        rest = ("down.bias", "up.weight", "up.bias")
        yield from ((each, torch.zeros(self.get_parameter(each).shape)) for each in rest)


def add_bottleneck(model: nn.Module, step: config.BottleneckConfig) -> None:
    """Hang an adapter on each layer the step names. UsageError for one wider than that layer's output."""
    for name, layer in matching_linears(model, step.targets, "surgery bottleneck targets").items():
        width = layer.weight.shape[0]
        if step.width > width:
            raise UsageError(f"surgery bottleneck width: {name} gives {width} values, found {step.width}")
        with torch.device(layer.weight.device):
            layer.adapter = Bottleneck(width, step.width)
