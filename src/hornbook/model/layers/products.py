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

from hornbook.kernels.torch_versions import FakeTensor, assume_constant_result, has_fp16, onednn_linear, packed_weight
from hornbook.model.layers import onednn
from hornbook.model.layers.precision import choose_precision
from hornbook.model.layers.saved_tensors import applied

PACKED_ROWS = 32
"""Number of rows that the order of packed weights is chosen for; it is as good for one, and for a thousand."""

SUMMED_ROWS = 1024
"""Rows of a sum to which products are added at once: they are in cache when they are added."""

NARROW = 4
"""A factor between widths from which on the copy of the narrower side, and one of the result, take less time."""


def is_widened(x: Tensor) -> bool:
    """Whether products of tensors like this one are computed in float32. A trace on tensors without values stands for a
    device that multiplies them as they are."""
    return x.device.type == "cpu" and not _multiplies(x.dtype) and not isinstance(x, FakeTensor)


@assume_constant_result  # else torch.compile traces what is cached, the measurement included
def _multiplies(dtype: torch.dtype) -> bool:
    """Whether this CPU multiplies numbers of a type itself, no slower than float32."""
    return _ask_cpu(dtype)


@functools.cache
def _ask_cpu(dtype: torch.dtype) -> bool:
    if dtype == torch.bfloat16:
        return choose_precision(torch.device("cpu")).precision == "bf16"
    return dtype != torch.float16 or has_fp16()


def linear(
    x: Float[Tensor, "*batch inputs"], weight: Float[Tensor, "outputs inputs"], bias: Tensor | None = None
) -> Float[Tensor, "*batch outputs"]:
    """x W^T + b; all of one dtype."""
    if is_widened(x):
        return OwnLinear.apply(x, weight, bias)
    if is_own(x, len(weight)):
        return applied(OwnLinear, x, weight, bias)
    return F.linear(x, weight, bias)


def input_gradient(grad: Float[Tensor, "n outputs"], weight: Float[Tensor, "outputs inputs"]) -> Tensor:
    """g W, the gradient of what a linear layer reads [n, inputs]; for code that makes its gradients itself."""
    if is_widened(grad):
        return input_gradient(grad.float(), weight.float()).to(grad.dtype)
    return onednn.product(grad, weight.T) if is_own(grad, weight.shape[1]) else grad @ weight


def weight_gradient(grad: Float[Tensor, "n outputs"], x: Float[Tensor, "n inputs"]) -> Tensor:
    """g^T x, the gradient of a linear layer's weight [outputs, inputs]; for code that makes its gradients itself."""
    if is_widened(grad):
        return weight_gradient(grad.float(), x.float()).to(grad.dtype)
    if not is_own(grad, x.shape[1]):
        return grad.T @ x
    # oneDNN's left side is copied where it is not contiguous: the narrow one costs little.
    if grad.shape[1] > NARROW * x.shape[1]:
        return onednn.product(x.T, grad.T).T.contiguous()
    return onednn.product(grad.T, x.T)


def crossed(left: Float[Tensor, "n k"], right: Float[Tensor, "m k"], tokens: int) -> Float[Tensor, "n m"]:
    """left right^T, one of whose dims is a number of `tokens`, the narrow side on the left; for code that makes its
    gradients itself."""
    if is_widened(left):
        return crossed(left.float(), right.float(), tokens).to(left.dtype)
    narrowest, work = min(*left.shape, len(right)), left.numel() * len(right)
    if left.dtype == torch.float32 and onednn.takes(left, tokens, narrowest, work):
        return onednn.product(left, right)
    return left @ right.T


def is_own(x: Float[Tensor, "*batch inputs"], outputs: int) -> bool:
    """Whether products of a linear layer with `x`, which it reads or gives the gradient of, are oneDNN's."""
    inputs = x.shape[-1]
    tokens, narrowest = x.numel() // max(inputs, 1), min(inputs, outputs)
    return x.dtype == torch.float32 and onednn.takes(x, tokens, narrowest, x.numel() * outputs)


def matmul(left: Float[Tensor, "*batch n k"], right: Float[Tensor, "*batch k m"]) -> Float[Tensor, "*batch n m"]:
    """left @ right, of the same number of dims; a batch dim of 1 is spread."""
    if not is_widened(left):
        return left @ right
    return WideProduct.apply(left, right)


def mm_into(left: Float[Tensor, "n k"], right: Float[Tensor, "k m"], out: Float[Tensor, "n m"]) -> Tensor:
    """left @ right written to `out`, which is returned; for code that makes its gradients itself."""
    if is_widened(left):
        return out.copy_(left.float() @ right.float())
    if is_own(left, right.shape[1]):
        return out.copy_(onednn.product(left, right.T))
    return torch.mm(left, right, out=out)


def add_weight_gradient_(
    sums: Float[Tensor, "outputs inputs"], grad: Float[Tensor, "n outputs"], x: Float[Tensor, "n inputs"]
) -> None:
    """sums += g^T x, all of one dtype; no product of the size of `sums` is made."""
    if not is_own(grad, x.shape[1]):
        sums.addmm_(grad.T, x)
        return
    for part, columns in zip(sums.split(SUMMED_ROWS), grad.split(SUMMED_ROWS, 1), strict=True):
        part.add_(onednn.product(columns.T, x.T))


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
        self._weight = packed_weight(weight.detach(), PACKED_ROWS)

    def takes(self, x: Tensor) -> bool:
        """Whether the copy serves for this input."""
        return x.dtype == torch.float32 and not torch.is_grad_enabled()

    def packed(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """The product, for an input that it takes."""
        return onednn_linear(x.contiguous(), self._weight, bias)

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.packed(x, bias) if self.takes(x) else linear(x, weight, bias)


def is_packable(weight: Tensor) -> bool:
    """Whether there is a packed product of it: on a CPU for which oneDNN has code of its own."""
    own = torch.backends.mkldnn.is_available() and platform.machine().lower() in ("x86_64", "amd64")
    return own and weight.device.type == "cpu" and weight.dtype == torch.float32


class OwnLinear(torch.autograd.Function):
    """x W^T + b with gradients of our own products; of operands, only what they need is kept."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        trains_x, trains_weight = x.requires_grad, weight.requires_grad
        ctx.save_for_backward(x if trains_weight else None, weight if trains_x else None)
        if is_widened(x):
            return linear(x.float(), weight.float(), None if bias is None else bias.float()).to(x.dtype)
        return onednn.product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        x, weight = ctx.saved_tensors
        grad = grads[0].reshape(-1, grads[0].shape[-1])
        d_x = d_weight = None
        if ctx.needs_input_grad[0]:
            d_x = input_gradient(grad, weight).view(*grads[0].shape[:-1], weight.shape[1])
        if ctx.needs_input_grad[1]:
            d_weight = weight_gradient(grad, x.reshape(-1, x.shape[-1]))
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
