"""IA3 (Liu et al. 2022, arXiv 2205.05638): trained factors on what frozen layers give, or read; 1 at first.

The paper's section 3.3: keys and values are multiplied by one factor for each of their entries, and so is what the
second matrix of the MLP reads. A factor is part of its layer's matrix once it is merged: diag(l) W, or W diag(l).
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.model.config.surgery_config import Ia3Config
from hornbook.model.layers.linear import Linear
from hornbook.model.surgery.added import Mergeable, matching, matching_linears


class OutputScale(Mergeable):
    """`scale` [out, 1]: factors of what a layer gives, its bias included."""

    role: ClassVar = "vector"
    cuts: ClassVar = {0: {"scale": 0}, 1: {"scale": None}}

    def __init__(self, layer: Linear) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(layer.weight.shape[0], 1))

    def forward(self, layer: Linear, x: Tensor, y: Float[Tensor, "*batch outputs"]) -> Float[Tensor, "*batch outputs"]:
        del layer, x
        return y * self.scale[:, 0].to(y.dtype)

    def merged(self, weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "outputs inputs"]:
        return weight * self.scale

    def merged_bias(self, bias: Float[Tensor, " outputs"]) -> Float[Tensor, " outputs"]:
        return bias * self.scale[:, 0]

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        del name, seed, weight
        yield "scale", torch.ones(self.scale.shape)


class InputScale(OutputScale):
    """`scale` [1, in]: factors of what a layer reads."""

    cuts: ClassVar = {0: {"scale": None}, 1: {"scale": 1}}

    def __init__(self, layer: Linear) -> None:
        super().__init__(layer)
        self.scale = nn.Parameter(torch.empty(1, layer.weight.shape[1]))

    def enter(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch inputs"]:
        """The layer's input, scaled."""
        return x * self.scale[0].to(x.dtype)

    def forward(self, layer: Linear, x: Tensor, y: Tensor) -> Tensor:
        del layer, x
        return y

    def merged_bias(self, bias: Tensor) -> Tensor:
        return bias


def add_ia3(model: nn.Module, step: Ia3Config) -> None:
    """Hang factors on the layers the step names. UsageError for inputs that several layers read as one."""
    layers = matching_linears(model, step.targets, "surgery ia3 targets")
    inputs = matching(layers, step.inputs, "surgery ia3 inputs", "layer of the targets") if step.inputs else []
    for name, layer in layers.items():
        parent, _, own = name.rpartition(".")
        if name in inputs and own in getattr(model.get_submodule(parent), "beside", ()):
            raise UsageError(f"surgery ia3 inputs: others read the input of {name} too: leave it in targets alone")
        with torch.device(layer.weight.device):
            if name in inputs:
                layer.adapter = scale = InputScale(layer)
                layer.enter = scale.enter
            else:
                layer.adapter = OutputScale(layer)
