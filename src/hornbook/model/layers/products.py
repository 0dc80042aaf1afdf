"""Matrix products in the dtype of their operands, on every CPU.

Where a CPU multiplies bfloat16 or float16 slower than float32 (`precision.py`), operands are widened to
float32, multiplied, and the result is rounded: what the CPU's own instructions would give, which multiply rounded
numbers exactly and add in float32 too, up to the order of the sum. Tensors keep their dtype in memory and between
layers, and gradients are rounded where they would be. Every product of the model that may meet such a dtype goes
through this module.
"""

import functools
import platform
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from hornbook.model.layers.precision import choose_precision

PACKED_ROWS = 32
"""Number of rows that the order of packed weights is chosen for; it is as good for one, and for a thousand."""


def is_widened(x: Tensor) -> bool:
    """Whether products of tensors like this one are computed in float32. A trace on tensors without values stands for a
    device that multiplies them as they are."""
    return x.device.type == "cpu" and not _multiplies(x.dtype) and not isinstance(x, FakeTensor)


@torch.compiler.assume_constant_result  # else torch.compile traces what is cached, the measurement included
def _multiplies(dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies numbers of a type itself, no slower than float32."""
    return _ask_cpu(dtype)


@functools.cache
def _ask_cpu(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return choose_precision(torch.device("cpu")).precision == "bf16"
    return dtype != torch.float16 or torch.ops.mkldnn._is_mkldnn_fp16_supported()


def linear(
    x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None = None
) -> Float[Tensor, "*batch outputs"]:
    """x W^T + b; all of one dtype."""
    if not is_widened(x):
        return F.linear(x, weight, bias)
    return WideLinear.apply(x, weight, bias)


def matmul(left: Float[Tensor, "*batch n k"], right: Float[Tensor, "*batch k m"]) -> Float[Tensor, "*batch n m"]:
    """left @ right, of the same number of dims; a batch dim of 1 is spread."""
    if not is_widened(left):
        return left @ right
    return WideProduct.apply(left, right)


def mm_into(left: Float[Tensor, "n k"], right: Float[Tensor, "k m"], out: Float[Tensor, "n m"]) -> Tensor:
    """left @ right written to `out`, which is returned; for code that makes its gradients itself."""
    if not is_widened(left):
        return torch.mm(left, right, out=out)
    return out.copy_(left.float() @ right.float())


def add_products_(sums: Float[Tensor, "b n m"], left: Float[Tensor, "b n k"], right: Float[Tensor, "b k m"]) -> None:
    """sums += left @ right; for code that makes its gradients itself."""
    if is_widened(left):
        sums += (left.float() @ right.float()).to(left.dtype)
    else:
        sums.baddbmm_(left, right)


class PackedProduct:
    """x W^T + b with a copy of W in the order in which oneDNN reads it; with gradients, or in another dtype, W itself.

    It reads W at the memory's speed, where BLAS libraries take two to three times as long for a few rows
    (docs/speed.md), and gives each row the same bits whatever other rows there are.
    """

    def __init__(self, weight: Float[Tensor, "outputs inputs"]) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), PACKED_ROWS)

    def takes(self, x: Tensor) -> bool:
        """Whether the copy serves for this input."""
        return x.dtype == torch.float32 and not torch.is_grad_enabled()

    def packed(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The product, for an input that it takes."""
        return torch.ops.mkldnn._linear_pointwise(x.contiguous(), self._weight, bias, "none", [], "")

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.packed(x, bias) if self.takes(x) else linear(x, weight, bias)


def is_packable(weight: Tensor) -> bool:
    """Whether there is a packed product of it: on a CPU for which oneDNN has code of its own."""
    own = torch.backends.mkldnn.is_available() and platform.machine().lower() in ("x86_64", "amd64")
    return own and weight.device.type == "cpu" and weight.dtype == torch.float32


class WideLinear(torch.autograd.Function):
    """`linear` by float32 products; what is kept for backward has the narrow dtype."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return F.linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        x, weight = ctx.saved_tensors
        grad = grads[0].reshape(-1, grads[0].shape[-1])
        wide = grad.float()
        d_x = (wide @ weight.float()).to(x.dtype).view(x.shape) if ctx.needs_input_grad[0] else None
        d_weight = (wide.T @ x.reshape(-1, x.shape[-1]).float()).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return d_x, d_weight, grad.sum(0) if ctx.needs_input_grad[2] else None


class WideProduct(torch.autograd.Function):
    """`matmul` by float32 products; what is kept for backward has the narrow dtype."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return (left.float() @ right.float()).to(left.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        left, right = ctx.saved_tensors
        wide = grads[0].float()
        d_left = d_right = None
        if ctx.needs_input_grad[0]:
            d_left = (wide @ right.float().mT).sum_to_size(left.shape).to(left.dtype)
        if ctx.needs_input_grad[1]:
            d_right = (left.float().mT @ wide).sum_to_size(right.shape).to(right.dtype)
        return d_left, d_right
