"""Linear layers that hold float32 weights and compute in the dtype of their input.

No autocast: the input's dtype decides, so the arithmetic of a layer is visible where it is called.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

FEW_ROWS = 64
"""Below so many rows (decoding) putting weights side by side costs more than the one product saves: a decode step of a
124M-parameter model took 1.43 times as long."""


class Linear(nn.Module):
    """`y = x W^T + b`, W of shape [out, in] as in torch; values come from `hornbook.model.init`."""

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))


def fused_linear(x: Float[Tensor, "*batch inputs"], layers: list[Linear]) -> Float[Tensor, "*batch outputs"]:
    """Outputs of several layers over the same input, side by side: one matrix product serves all.

    All layers have a bias, or none has.
    """
    if x.numel() < FEW_ROWS * x.shape[-1]:
        return torch.cat([layer(x) for layer in layers], -1)
    weight = torch.cat([layer.weight.to(x.dtype) for layer in layers])
    biases = [layer.bias.to(x.dtype) for layer in layers if layer.bias is not None]
    return F.linear(x, weight, torch.cat(biases) if biases else None)
