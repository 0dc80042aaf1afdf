"""Matrix products of float8 operands: Micikevicius et al. 2022, arXiv 2209.05433, with scales taken from each operand.

An operand x becomes codes q = x s, rounded to a float8 of 4 bits of exponent and 3 of mantissa (e4m3); x is q / s.
s is the largest code over the largest magnitude of the operand (`tensor`), or of each row and column that is multiplied
(`row`), then rounded down to a power of two. Gradients of outputs have 5 bits of exponent (e5m2) under `tensor`. So

    y = Q(x) Q(W)^T,  dx = Q(dy) Q(W),  dW = Q(dy)^T Q(x)

with sums in float32, and results in the dtype of x. Weights, their gradients and what is between layers stay as they
are. On a GPU with such products the device multiplies the codes; elsewhere `emulate` multiplies the numbers that the
codes stand for in float32, which is the same up to the order of sums, and slow.
"""

from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.kernels.torch_versions import scaled_product
from hornbook.model.layers.linear import Linear

MULTIPLE = 16
"""Products of a GPU need dims that are multiples of this; other layers compute in bfloat16."""
LEAST = 1e-12
"""Magnitude from which on an operand is scaled."""
CAPABILITY = (8, 9)
"""Compute capability of the first GPUs with such products (Ada; Hopper is 9.0)."""
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


@dataclass(frozen=True)
class Float8:
    """How the products of a layer are made."""

    scaling: Literal["tensor", "row"]
    emulate: bool

    def linear(
        self, x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None
    ) -> Float[Tensor, "*batch outputs"]:
        """x W^T + b."""
        y = Float8Linear.apply(x, weight, self)
        return y if bias is None else y + bias

    def product(self, left: Float[Tensor, "n k"], right: Float[Tensor, "k m"], first: torch.dtype) -> Tensor:
        """left @ right in the dtype of left; `first` is the float8 of left, and e4m3 that of right."""
        (a, a_scale), (b, b_scale) = self._operand(left, first, 1), self._operand(right, E4M3, 0)
        if self.emulate:
            return ((a.float() * (1 / a_scale)) @ (b.float() * (1 / b_scale))).to(left.dtype)
        rest = -a.shape[1] % MULTIPLE  # rows of a last, smaller batch
        if rest:
            zeros = (F.pad(each.view(torch.uint8), pad) for each, pad in ((a, (0, rest)), (b, (0, 0, 0, rest))))
            a, b = (each.view(kind) for each, kind in zip(zeros, (first, E4M3), strict=True))
        b = b.t().contiguous().t()
        return scaled_product(a.contiguous(), b, 1 / a_scale, 1 / b_scale, left.dtype)

    def _operand(self, x: Tensor, kind: torch.dtype, dim: int) -> tuple[Tensor, Tensor]:
        return quantize(x, kind, dim if self.scaling == "row" else None)


def quantize(x: Tensor, kind: torch.dtype, dim: int | None = None) -> tuple[Tensor, Tensor]:
    """Codes of x and the scale they are multiplied by (float32): one, or one for each slice along `dim`."""
    most = torch.finfo(kind).max
    largest = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
    scale = (most / largest.double().clamp(min=LEAST)).float()
    if dim is not None:
        scale = torch.exp2(torch.floor(torch.log2(scale)))
    return (x.float() * scale).clamp(-most, most).to(kind), scale


class Float8Linear(torch.autograd.Function):
    """x [..., inputs], weight [outputs, inputs] -> x W^T; backward rounds its operands anew, along its own sums."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, by: Float8) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.by = by
        return by.product(x.reshape(-1, x.shape[-1]), weight.T, E4M3).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        x, weight = ctx.saved_tensors
        kind = E5M2 if ctx.by.scaling == "tensor" else E4M3
        grad = grads[0].reshape(-1, grads[0].shape[-1])
        d_x = ctx.by.product(grad, weight, kind).view(x.shape) if ctx.needs_input_grad[0] else None
        d_weight = ctx.by.product(grad.T, x.reshape(-1, x.shape[-1]), kind) if ctx.needs_input_grad[1] else None
        return d_x, d_weight, None


def use_float8(blocks: list[nn.Module], by: Float8) -> int:
    """Make the linear layers of blocks compute in float8 where both dims are multiples of 16; returns their number.

    Embeddings, heads, norms and routers are no such layers, and stacked experts neither: they keep their arithmetic.
    """
    layers = [module for block in blocks for module in block.modules() if isinstance(module, Linear)]
    fitting = [layer for layer in layers if not any(dim % MULTIPLE for dim in layer.weight.shape)]
    for layer in fitting:
        layer.product = by.linear
    return len(fitting)


def check_float8(device: torch.device, emulate: bool) -> None:
    """Raise UsageError where a device has no products of float8, and they are not emulated."""
    missing = "" if emulate else missing_float8(device)
    if missing:
        raise UsageError(
            f"train.precision is float8, and {missing}: use --train.precision bf16, or to study its errors "
            "--train.float8.emulate true, which is slow"
        )


def missing_float8(device: torch.device) -> str:
    """Why products of float8 cannot be computed on a device; "" where they can."""
    if device.type != "cuda":
        return f"{device.type} has no products of float8"
    found = torch.cuda.get_device_capability(device)
    return "" if found >= CAPABILITY else f"this GPU has compute capability {found[0]}.{found[1]}, and float8 needs 8.9"
