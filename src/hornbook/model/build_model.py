"""From a configuration to modules. Each part of it builds its own (`config/part.py`); docs/parts.md shows one."""

from typing import Any

import torch
from torch import nn

from hornbook.model.attention.attention import CrossAttention
from hornbook.model.block import Block, Norms, ParallelBlock, ResidualAdd
from hornbook.model.config import model_config as config
from hornbook.model.config.norm_config import NormConfig
from hornbook.model.config.replaced_config import ReplacedHead
from hornbook.model.heads.head import Transform
from hornbook.model.heads.mtp import Join, MultiToken
from hornbook.model.heads.replaced import Detector
from hornbook.model.layers.dropout import Dropout, RowDropout
from hornbook.model.layers.embedding import Embedding, InputLayers, TokenTypes
from hornbook.model.layers.linear import Linear
from hornbook.model.transformer import Generator, Stack, Transformer


def build_model(cfg: config.ModelConfig, vocab: int, device: torch.device | str = "meta") -> Transformer:
    """The model of a config with `vocab` rows of embedding; values are set by `initialize` or a checkpoint."""
    with torch.device(device):
        embedding = Embedding(vocab, cfg.embedding.width or cfg.width)
        encoder = Stack(**_stack(cfg.encoder, first=cfg.layers)) if cfg.kind == "encoder_decoder" else None
        stack = _stack(cfg, cross=encoder is not None)
        head = cfg.head.build(cfg, vocab, embedding)
        return Transformer(embedding=embedding, head=head, encoder=encoder, mtp=_multi_token(cfg), **stack)


def replaced_head(cfg: ReplacedHead, model: config.ModelConfig, vocab: int, embedding: Embedding) -> Detector:
    """The head that tells replaced tokens, with the generator where there is one."""
    small, generator = cfg.generator_of(model), None
    if small is not None:
        head = small.head.build(small, vocab, embedding)
        generator = Generator(head, **_stack(small, first=model.num_blocks))
    return Detector(model.width, Transform(model.width, True, cfg.activation, None), generator)


def _multi_token(cfg: config.ModelConfig) -> MultiToken | None:
    numbers = range(cfg.layers, cfg.num_blocks)
    if not numbers:
        return None
    norm, blocks = cfg.norm.build, {str(i): _block(cfg, i, i, cross=False) for i in numbers}
    joined = isinstance(cfg.mtp, config.SequentialMTP)
    joins = {str(i): Join(cfg.width, (norm(cfg.width), norm(cfg.width))) for i in numbers if joined}
    ends = {str(i): norm(cfg.width) for i in numbers} if cfg.final_norm else {}
    return MultiToken(blocks, joins, {name: end for name, end in ends.items() if end is not None})


def _stack(cfg: config.ModelConfig, cross: bool = False, first: int = 0) -> dict[str, Any]:
    """Arguments of a Stack; its layers count from `first` where randomness is keyed by them."""
    return {
        "kind": "bidirectional" if cfg.kind == "encoder" else "causal",
        "positions": cfg.position.build_added(cfg.entrance),
        "bias": cfg.position.build_bias(cfg),
        "entrance": _input_layers(cfg),
        "dropout": Dropout(cfg.dropout, first, site=0),
        "blocks": {str(i): _block(cfg, i, first + i, cross) for i in range(cfg.layers)},
        "norm": cfg.norm.build(cfg.width) if cfg.final_norm else None,
    }


def _input_layers(cfg: config.ModelConfig) -> InputLayers:
    part, width = cfg.embedding, cfg.entrance.width
    project = Linear(part.width, cfg.width, bias=part.bias) if part.width else None
    types = TokenTypes(part.types, width) if part.types else None
    norm = cfg.norm.build(width) if part.norm else None
    return InputLayers(part.scale, project, types, norm, projected_last=part.projected == "last")


def _block(cfg: config.ModelConfig, number: int, layer: int, cross: bool) -> nn.Module:
    own, rate = cfg.layer(number), cfg.stochastic_depth * min(number + 1, cfg.layers) / cfg.layers
    attention, mlp = own.attention.build(own, layer), own.mlp.build(own, layer)
    residual_adds = _residual_add(cfg, rate, layer, 1), _residual_add(cfg, rate, layer, 2)
    if isinstance(cfg.block, config.Parallel):
        first = cfg.norm.build(cfg.width)
        assert first is not None
        norms = first, None if cfg.block.shared_norm else cfg.norm.build(cfg.width)
        return ParallelBlock(own, attention, mlp, norms, residual_adds)
    norms = _norms(cfg, cfg.attention_norm(number)), _norms(cfg, cfg.norm)
    if not cross:
        return Block(own, attention, mlp, norms, residual_adds)
    across = CrossAttention(own, layer), _norms(cfg, cfg.norm), _residual_add(cfg, rate, layer, 3)
    return Block(own, attention, mlp, norms, residual_adds, across)


def _norms(cfg: config.ModelConfig, norm: NormConfig) -> Norms:
    assert not isinstance(cfg.block, config.Parallel)
    return Norms(**{site: norm.build(cfg.width) for site in cfg.block.norms})


def _residual_add(cfg: config.ModelConfig, rate: float, layer: int, site: int) -> ResidualAdd:
    multiplier = cfg.block.multiplier if isinstance(cfg.block, config.PreNorm) else 1.0
    return ResidualAdd(Dropout(cfg.dropout, layer, site), RowDropout(rate, layer, site + 8), multiplier)


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Role of each parameter, as its module says: embedding, position, head, matrix, norm or vector.

    Optimizer groups and decay follow from roles, never from patterns over names.
    """
    roles = {}
    for prefix, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            role = str(module.role)
            roles[f"{prefix}.{name}"] = "vector" if name == "bias" and role != "norm" else role
    return roles
