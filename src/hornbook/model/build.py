"""From a config to modules: the one table that joins each `kind` with its class."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hornbook.model import config
from hornbook.model.attention import FullAttention
from hornbook.model.block import Block
from hornbook.model.dropout import Dropout
from hornbook.model.embedding import Embedding
from hornbook.model.head import Head
from hornbook.model.linear import Linear
from hornbook.model.mlp import GLU, MLP
from hornbook.model.norm import LayerNorm, RMSNorm
from hornbook.model.position import LearnedPositions, Rope
from hornbook.model.transformer import Transformer

PARTS: dict[type, Callable[[Any, int], Any]] = {
    config.FullAttention: FullAttention,
    config.MLP: lambda cfg, _: MLP(cfg.width, cfg.hidden, cfg.mlp),
    config.GLU: lambda cfg, _: GLU(cfg.width, cfg.hidden, cfg.mlp),
    config.LayerNorm: lambda cfg, _: LayerNorm(cfg.width, cfg.norm),
    config.RMSNorm: lambda cfg, _: RMSNorm(cfg.width, cfg.norm),
    config.LearnedPositions: lambda cfg, _: LearnedPositions(cfg.width, cfg.position),
    config.Rope: lambda cfg, _: Rope(cfg.head_dim, cfg.position),
}
"""Type of a part's config -> maker of the part, from the model's config and the layer's number."""

ROLES = {
    Embedding: "embedding",
    LearnedPositions: "position",
    Head: "head",
    Linear: "matrix",
    LayerNorm: "norm",
    RMSNorm: "norm",
}
"""Type of a module -> role of its weight; a Linear's bias is a `vector`."""


def build_model(cfg: config.ModelConfig, vocab: int, device: torch.device | str = "meta") -> Transformer:
    """The model of a config with `vocab` rows of embedding; values are set by `initialize` or a checkpoint."""
    with torch.device(device):
        embedding = Embedding(vocab, cfg.width)
        return Transformer(
            embedding=embedding,
            positions=_part(cfg.position, cfg),
            dropout=Dropout(cfg.dropout, layer=0, site=0),
            blocks={str(layer): _block(cfg, layer) for layer in range(cfg.layers)},
            norm=_part(cfg.norm, cfg),
            head=Head(vocab, cfg.width, tied_to=embedding if cfg.head.tied else None),
        )


def _block(cfg: config.ModelConfig, layer: int) -> Block:
    return Block(
        norm1=_part(cfg.norm, cfg, layer),
        attention=_part(cfg.attention, cfg, layer),
        norm2=_part(cfg.norm, cfg, layer),
        mlp=_part(cfg.mlp, cfg, layer),
        dropouts=(Dropout(cfg.dropout, layer, site=1), Dropout(cfg.dropout, layer, site=2)),
    )


def _part(part, cfg: config.ModelConfig, layer: int = 0):
    return PARTS[type(part)](cfg, layer)


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Role of each parameter, by the type of its module: embedding, position, head, matrix, norm or vector.

    Optimizer groups and decay follow from roles, never from patterns over names.
    """
    roles = {}
    for prefix, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            role = "vector" if isinstance(module, Linear) and name == "bias" else ROLES[type(module)]
            roles[f"{prefix}.{name}"] = role
    return roles
