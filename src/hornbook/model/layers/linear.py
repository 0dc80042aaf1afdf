"""Linear layers that hold float32 weights and compute in the dtype of their input.

No autocast: the input's dtype decides, so the arithmetic of a layer is visible where it is called. Surgery
(`hornbook.model.surgery`) hangs parts on a layer; its names, and its arithmetic without them, stay as they are.
"""

from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.model.config.part import FEW_ROWS
from hornbook.model.layers.low_rank import add_updates, update_of
from hornbook.model.layers.products import PackedProduct, input_gradient, linear
from hornbook.model.layers.saved_tensors import cheap

Change = Callable[[Tensor], Tensor]
Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""x, W and b -> x W^T + b."""


class Linear(nn.Module):
    """`y = x W^T + b`, W of shape [out, in] as in torch; values come from `hornbook.model.init.init`."""

    role: ClassVar = "matrix"

    def __init__(self, inputs: int, outputs: int, bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs)) if bias else None
        self.code: nn.Module | None = None
        """Replaces W in products, called with `weight`: rounded weights, or 4-bit codes of frozen ones."""
        self.adapter: nn.Module | None = None
        """Changes the output, called with (layer, x, y); where `sums`, the product before `leave` and the bias."""
        self.product: Product | None = None
        """Makes the product in a way of its own: from float8 operands, or with a look at the input."""
        self.product_beside: PackedProduct | None = None
        """Makes the product of this layer and those whose product is one with its own (`layers.packed`)."""
        self.enter: Change | None = None
        """What becomes of the input before the product; layers whose product is one have the same."""
        self.leave: Change | None = None
        """What becomes of the product before the bias is added."""
        self.keeps_zeros = False
        """Whether weights that are 0 stay so in training (`hornbook.parallel.gradients.zeros`)."""
        self.held: Tensor | None = None
        """W in the dtype of products, while microbatches of one step share it (`hornbook.model.layers.held`)."""
        self.held_beside: Tensor | None = None
        """The same with those of the layers whose product is one with this layer's, which is the first."""

    @property
    def plain(self) -> bool:
        """Whether the layer is no more than its weight and bias: only then may a kernel take `weight` itself."""
        return self.code is None and self.adapter is None and self.product is None

    def matrix(self, dtype: torch.dtype) -> Float[Tensor, "outputs inputs"]:
        """W as products see it."""
        if self.held is not None and self.held.dtype == dtype:
            return HeldWeights.apply(self.held, self.weight)
        return cheap(_cast, self.weight, dtype) if self.code is None else self.code(self.weight).to(dtype)

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        return self.after_entrance(x if self.enter is None else self.enter(x))

    def after_entrance(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        """The output for an input that `enter` has changed."""
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.leave is None:
            y = self._product(x, bias)
            return y if self.adapter is None else _adapted(x, y, [self])
        y, sums = self._product(x, None), getattr(self.adapter, "sums", None)
        y = self.leave(_adapted(x, y, [self]) if sums else y)
        y = y if bias is None else y + bias
        return y if sums or self.adapter is None else _adapted(x, y, [self])

    def _product(self, x: Tensor, bias: Tensor | None) -> Tensor:
        if self.code is not None and not self.weight.requires_grad:
            return FrozenProduct.apply(x, self, bias)
        product = linear if self.product is None else self.product  # torch 2.11 cannot compile `or` of a method
        return product(x, self.matrix(x.dtype), bias)


class FrozenProduct(torch.autograd.Function):
    """x W^T + b of a layer whose W is made from codes: it is made again for backward instead of being kept."""

    @staticmethod
    def forward(ctx, x: Tensor, layer: Linear, bias: Tensor | None) -> Tensor:
        ctx.layer = layer
        return linear(x, layer.matrix(x.dtype), bias)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        grad_bias = grads[0].flatten(0, -2).sum(0) if ctx.needs_input_grad[2] else None
        d_x = input_gradient(grads[0].flatten(0, -2), ctx.layer.matrix(grads[0].dtype))
        return d_x.unflatten(0, grads[0].shape[:-1]), None, grad_bias


class HeldWeights(torch.autograd.Function):
    """Weights beside each other in another dtype, as they are held -> the same; gradients go to each weight."""

    @staticmethod
    def forward(ctx, held: Tensor, *weights: Tensor) -> Tensor:
        ctx.dtype, ctx.sizes = weights[0].dtype, [len(weight) for weight in weights]
        return held.detach()

    @staticmethod
    def backward(ctx, *grads: Tensor):
        parts = [part.to(ctx.dtype) for part in grads[0].split(ctx.sizes)]
        return None, *(part if needed else None for part, needed in zip(parts, ctx.needs_input_grad[1:], strict=True))


def fused_linear(x: Float[Tensor, "*batch inputs"], layers: list[Linear]) -> Float[Tensor, "*batch outputs"]:
    """Outputs of several layers over the same input, side by side: one matrix product serves all.

    All layers have a bias, or none has. Adapters are added after the common product, so that one that adds nothing
    changes no bit.
    """
    enter = layers[0].enter
    x = x if enter is None else enter(x)
    packed = layers[0].product_beside
    if packed is not None and packed.takes(x):
        y = packed.packed(x, _biases(layers, x.dtype))
    elif x.numel() < FEW_ROWS * x.shape[-1] or any(_computes_alone(layer) for layer in layers):
        return torch.cat([layer.after_entrance(x) for layer in layers], -1)
    else:
        y = linear(x, _weights(layers, x.dtype), _biases(layers, x.dtype))
    return y if all(layer.adapter is None for layer in layers) else _adapted(x, y, layers)


def _adapted(x: Tensor, y: Tensor, layers: list[Linear]) -> Tensor:
    """The layers' outputs side by side, y, with what their adapters make of them."""
    widths, adapters = [layer.weight.shape[0] for layer in layers], [layer.adapter for layer in layers]
    updates = [update_of(adapter) for adapter in adapters]
    if all(update is not None or adapter is None for update, adapter in zip(updates, adapters, strict=True)):
        firsts = [sum(widths[:number]) for number in range(len(layers))]
        return add_updates(x, y, [(first, each) for first, each in zip(firsts, updates, strict=True) if each])
    parts = zip(layers, y.split(widths, -1), strict=True)
    return torch.cat([part if layer.adapter is None else layer.adapter(layer, x, part) for layer, part in parts], -1)


def _weights(layers: list[Linear], dtype: torch.dtype) -> Tensor:
    """The layers' weights beside each other."""
    held = layers[0].held_beside
    if held is not None and held.dtype == dtype:
        return HeldWeights.apply(held, *(layer.weight for layer in layers))
    return cheap(_stacked, *(layer.matrix(dtype) for layer in layers))


def _biases(layers: list[Linear], dtype: torch.dtype) -> Tensor | None:
    biases = [layer.bias.to(dtype) for layer in layers if layer.bias is not None]
    return torch.cat(biases) if biases else None


def _cast(weight: Tensor, dtype: torch.dtype) -> Tensor:
    return weight.to(dtype)


def _stacked(*weights: Tensor) -> Tensor:
    return torch.cat(weights)


def _computes_alone(layer: Linear) -> bool:
    """Whether its weight cannot be put beside others: it is frozen codes, or scaled by its own largest value."""
    return layer.product is not None or (layer.code is not None and not layer.weight.requires_grad)
