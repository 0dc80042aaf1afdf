"""Another activation in the MLPs of a model that trains, at once or in small steps.

With f the present and g the new activation and a share a, an MLP computes

    (1 - a) f(x) + a g(x)                                                                                          (1)

At a = 0 it computes f itself, and at a = 1 g itself: no bit is that of a sum.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from hornbook.model.config.model_config import ModelConfig
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.mlp import GLU, MLP, Blend
from hornbook.model.transformer import Transformer


def set_activation(model: Transformer, before: ModelConfig, after: ModelConfig, share: float) -> None:
    """Have every MLP compute equation (1) with the activations that two configurations give its layer."""
    for block, one, other in _layers(model, before, after):
        pair = one.mlp.activation, other.mlp.activation
        for module in _mlps(block):
            module.activation = _between(module, *pair, share)


def _layers(model: Transformer, before: ModelConfig, after: ModelConfig) -> Iterator[tuple[nn.Module, Any, Any]]:
    """(block, the two configurations as this layer sees them), of layers whose activation differs."""
    blocks = [(model.blocks, before, after)]
    if model.mtp is not None:
        blocks.append((model.mtp.blocks, before, after))
    if model.encoder is not None:
        blocks.append((model.encoder.blocks, before.encoder, after.encoder))
    for some, one, other in blocks:
        for number, block in some.items():
            configs = one.layer(int(number)), other.layer(int(number))
            if configs[0].mlp != configs[1].mlp:
                yield block, *configs


def _mlps(block: nn.Module) -> Iterator[MLP | GLU | Experts]:
    return (module for module in block.modules() if isinstance(module, MLP | GLU | Experts))


def _between(module: MLP | GLU | Experts, before: Any, after: Any, share: float) -> Any:
    if share <= 0 or share >= 1:
        return before if share <= 0 else after
    if isinstance(module.activation, Blend):
        module.activation.share.fill_(share)  # in place: compiled code keeps its tensor
        return module.activation
    device = next(module.parameters()).device
    return Blend(before, after, torch.tensor(share, dtype=torch.float32, device=device))
