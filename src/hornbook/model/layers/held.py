"""Weights in the dtype of products, cast once for all microbatches of a step.

Between two microbatches of a step weights do not change, so one cast serves all: `held_weights` makes them before the
first and drops them after the last, and nothing outside sees them. Weights whose product is one (query, key and value;
gate and up) lie beside each other in one tensor. The same bits as a cast each time, forward and backward.
"""

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

from hornbook.model.heads.head import Head
from hornbook.model.heads.label_heads import LabelHead
from hornbook.model.heads.replaced import Detector
from hornbook.model.layers.linear import Linear


@contextlib.contextmanager
def held_weights(model: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Hold the weights of all layers of a model that no other part stands in for, and the head's, in `dtype`."""
    all_layers = (each for each in model.modules() if isinstance(each, Linear))
    layers = {each for each in all_layers if each.plain and each.weight.dtype != dtype}
    heads = [each for each in model.modules() if isinstance(each, Head) and each.matrix.dtype != dtype]
    heads = [each for each in heads if not isinstance(each, LabelHead | Detector)]  # those compute in float32
    try:
        for head in heads:
            head.held = head.matrix.detach().to(dtype)
        for module in model.modules():
            together = [getattr(module, name) for name in getattr(module, "beside", ())]
            if together and all(layer in layers for layer in together):
                _hold_beside(together, dtype)
        for layer in layers:
            if layer.held is None:
                layer.held = layer.weight.detach().to(dtype)
        yield
    finally:
        for head in heads:
            head.held = None
        for layer in layers:
            layer.held = layer.held_beside = None


def _hold_beside(layers: list[Linear], dtype: torch.dtype) -> None:
    """One tensor for several layers over the same input; each layer's own is a view of it."""
    together = torch.cat([layer.weight.detach().to(dtype) for layer in layers])
    for layer, part in zip(layers, together.split([len(layer.weight) for layer in layers]), strict=True):
        layer.held = part
    layers[0].held_beside = together
