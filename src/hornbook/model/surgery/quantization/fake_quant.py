"""Quantization-aware training: forward computes with rounded weights, backward passes the rounding by.

The straight-through estimator (Bengio et al. 2013, arXiv 1308.3432): the gradient of a weight is 1 inside the range
and 0 outside. Scales come from the present largest value, so nothing is outside; or they are trained (LSQ, Esser et al.
2020, arXiv 1902.08153, equations 2 to 4): s begins at 2 mean|w| / sqrt(Q), and its gradient, which autograd finds,
round(w/s) - w/s inside and -Q or Q outside, is multiplied by 1 / sqrt(values x Q).

Rounding happens in the float32 of the weights, whatever the model computes in.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.model.config.surgery_config import FakeQuant, Grid
from hornbook.model.layers.linear import Linear
from hornbook.model.surgery.added import Added, matching_linears
from hornbook.model.surgery.quantization.integers import check_group, largest_code, num_shares, quantize, shares

SMALLEST_SCALE = 1e-8


class Rounded(torch.autograd.Function):
    """Nearest integer; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        del ctx
        return grads[0]


class FromRange(torch.autograd.Function):
    """A matrix rounded to a grid of its own range; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, grid: Grid) -> Tensor:
        del ctx
        return quantize(weight, grid).restored()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        del ctx
        return grads[0], None


class RangeQuant(Added):
    """Fake quantization with scales from the range: no parameters."""

    def __init__(self, layer: Linear, step: FakeQuant) -> None:
        super().__init__()
        del layer
        self.grid: Grid = step

    def forward(self, weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "outputs inputs"]:
        y = FromRange.apply(weight, self.grid)
        assert isinstance(y, Tensor)
        return y

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        del name, seed, weight
        yield from ()


class LearnedQuant(RangeQuant):
    """Fake quantization with trained scales: `scale` [shares, 1]."""

    role: ClassVar = "vector"

    def __init__(self, layer: Linear, step: FakeQuant) -> None:
        super().__init__(layer, step)
        outputs, inputs = layer.weight.shape
        self.scale = nn.Parameter(torch.empty(num_shares((outputs, inputs), step), 1))

    def forward(self, weight: Float[Tensor, "outputs inputs"]) -> Float[Tensor, "outputs inputs"]:
        top = largest_code(self.grid.bits)
        parts = shares(weight, self.grid)
        slow = (parts.shape[1] * top) ** -0.5
        scale = self.scale.clamp(min=SMALLEST_SCALE)
        scale = scale.detach() + slow * (scale - scale.detach())
        codes = Rounded.apply((parts / scale).clamp(-top, top))
        assert isinstance(codes, Tensor)
        return (codes * scale).view(weight.shape)

    def first_values(self, name: str, seed: int, weight: Tensor | None) -> Iterator[tuple[str, Tensor]]:
        del name, seed
        assert weight is not None, "scales begin at the size of the weights"
        mean = shares(weight, self.grid).abs().mean(1, keepdim=True)
        yield "scale", (2 * mean / largest_code(self.grid.bits) ** 0.5).clamp(min=SMALLEST_SCALE)


def add_fake_quant(model: nn.Module, step: FakeQuant) -> None:
    """Prepare: the layers the step names compute with rounded weights. UsageError for groups that do not fit."""
    for name, layer in matching_linears(model, step.targets, "surgery fake_quant targets").items():
        if step.per == "group":
            check_group(layer.weight.shape[1], step.group, name, "surgery fake_quant group")
        with torch.device(layer.weight.device):
            layer.code = (LearnedQuant if step.scales == "learned" else RangeQuant)(layer, step)
