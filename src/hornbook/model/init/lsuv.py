"""Layer-sequential unit variance: matrices scaled by what they make of real data (Mishkin and Matas 2016, 1511.06422).

Layers are visited in the order in which data reaches them. Each one's outputs are divided by their deviation, its
weights with them, before anything behind it sees them: so one forward pass sets all layers, and exactly.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from hornbook.model.layers.linear import Linear


class _Scaling(nn.Module):
    """Hangs on one layer, as adapters do, and scales it when its first outputs come by."""

    def forward(self, layer: Linear, x: Tensor, y: Tensor) -> Tensor:
        del x
        deviation = y.float().std()
        if not bool(torch.isfinite(deviation)) or deviation == 0:
            return y  # nothing reaches it: dead, or silenced by an override
        layer.weight.div_(deviation)
        return (y / deviation).to(y.dtype)


@torch.no_grad()
def scale_to_unit_variance(model: nn.Module, look: Callable[[], object]) -> None:
    """Scale every Linear in place. `look` runs the model once over a microbatch, without gradients.

    Layers have no bias other than zero yet. A layer that `look` does not reach stays as it is; one reached twice is
    scaled twice.
    """
    with _hung(model), torch.compiler.set_stance("force_eager"):
        look()


@contextlib.contextmanager
def _hung(model: nn.Module) -> Iterator[None]:
    layers = [module for module in model.modules() if isinstance(module, Linear)]
    before = [layer.adapter for layer in layers]
    try:
        for layer in layers:
            layer.adapter = _Scaling()
        yield
    finally:
        for layer, adapter in zip(layers, before, strict=True):
            layer.adapter = adapter
