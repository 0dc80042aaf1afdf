"""A model made ready to generate: its weights packed for products of a few rows (`products.PackedProduct`).

Each step of generation multiplies every weight with a few rows, so it takes as long as reading them. Layers whose
product is one lie beside each other. The model keeps its own weights too, for whatever else reads them.
"""

import torch
from torch import nn

from hornbook.model.heads.head import Head
from hornbook.model.layers.linear import Linear
from hornbook.model.layers.products import PackedProduct, is_packable


def pack(model: nn.Module) -> None:
    """Pack the weights of layers and heads, which must not change from here on.

    Layers that something else stands in for stay as they are, and all of them on a device that packs nothing.
    """
    layers = dict.fromkeys(_layers(model))
    for module in model.modules():
        together: list[Linear] = [getattr(module, name) for name in getattr(module, "beside", ())]
        if together and all(each in layers for each in together):
            together[0].product_beside = PackedProduct(torch.cat([each.weight.detach() for each in together]))
            for each in together:
                del layers[each]
    for each in layers:
        each.product = PackedProduct(each.weight)
    for head in _heads(model):
        head.product = PackedProduct(head.matrix)


def packed_bytes(model: nn.Module) -> int:
    """Bytes that packing takes."""
    return sum([*(each.weight.nbytes for each in _layers(model)), *(each.matrix.nbytes for each in _heads(model))])


def _layers(model: nn.Module) -> list[Linear]:
    layers = (each for each in model.modules() if isinstance(each, Linear))
    return [each for each in layers if each.code is None and each.product is None and is_packable(each.weight)]


def _heads(model: nn.Module) -> list[Head]:
    return [each for each in model.modules() if isinstance(each, Head) and is_packable(each.matrix)]
