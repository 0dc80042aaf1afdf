"""From a config to modules: the one table that joins each `kind` with its class.

To add a part: a frozen config with a `kind` of its own, a module in a file of its own, and a line in `PARTS` (and in
`ROLES`, if it has parameters that are neither of a Linear nor of a norm). docs/parts.md shows one.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hornbook.model.attention.attention import CrossAttention, FullAttention
from hornbook.model.attention.delta import CausalConvolution, DeltaAttention
from hornbook.model.attention.latent import LatentAttention
from hornbook.model.attention.position import Alibi, LearnedPositions, RelativeBuckets, SinusoidalPositions
from hornbook.model.block import Block, Norms, ParallelBlock, ResidualAdd
from hornbook.model.config import head as config_head
from hornbook.model.config import mlp as config_mlp
from hornbook.model.config import model as config
from hornbook.model.config import position as config_position
from hornbook.model.heads.head import Head, Scaled, Transform
from hornbook.model.heads.label_heads import Classifier, LabelHead, Regressor, SpanFinder, Tagger
from hornbook.model.layers.dropout import Dropout, RowDropout
from hornbook.model.layers.embedding import Embedding, InputLayers, TokenTypes
from hornbook.model.layers.linear import Linear
from hornbook.model.layers.norm import BatchNorm, LayerNorm, OffsetRMSNorm, RMSNorm
from hornbook.model.mlp.experts import Experts
from hornbook.model.mlp.mlp import GLU, MLP
from hornbook.model.mlp.router import SigmoidRouter, SoftmaxRouter, SwitchRouter
from hornbook.model.transformer import Stack, Transformer

PARTS: dict[type, Callable[[Any, int], Any]] = {
    config.FullAttentionConfig: FullAttention,
    config.LatentAttentionConfig: LatentAttention,
    config.DeltaAttentionConfig: DeltaAttention,
    config_mlp.PlainMLPConfig: lambda cfg, _: MLP(cfg.width, cfg.hidden, cfg.mlp),
    config_mlp.GLUConfig: lambda cfg, _: GLU(cfg.width, cfg.hidden, cfg.mlp),
    config_mlp.ExpertsConfig: lambda cfg, layer: Experts(cfg.width, cfg.hidden, cfg.mlp, layer),
}
"""Type of the config of an attention or MLP -> maker, from the model's config as the layer sees it and the layer."""

NORMS: dict[type, Callable[[int, Any], nn.Module | None]] = {
    config.LayerNormConfig: LayerNorm,
    config.RMSNormConfig: RMSNorm,
    config.OffsetRMSNormConfig: OffsetRMSNorm,
    config.BatchNormConfig: BatchNorm,
    config.NoNorm: lambda _width, _cfg: None,
}
"""Type of a norm's config -> maker, from the width and the config."""

LABEL_HEADS: dict[type, Callable[[int, Any, nn.Module | None], LabelHead]] = {
    config_head.ClassificationHead: Classifier,
    config_head.TokenClassificationHead: Tagger,
    config_head.RegressionHead: Regressor,
    config_head.SpanHead: SpanFinder,
}
"""Type of the config of a head for labels -> maker, from the width, the config and what is done first."""

ROLES = {
    Embedding: "embedding",
    TokenTypes: "position",
    LearnedPositions: "position",
    RelativeBuckets: "position",
    **dict.fromkeys((Head, Classifier, Tagger, Regressor, SpanFinder), "head"),
    Linear: "matrix",
    Experts: "matrix",
    SoftmaxRouter: "matrix",
    SigmoidRouter: "matrix",
    SwitchRouter: "matrix",
    DeltaAttention: "vector",
    CausalConvolution: "vector",
    LayerNorm: "norm",
    RMSNorm: "norm",
    OffsetRMSNorm: "norm",
    BatchNorm: "norm",
    FullAttention: "vector",
    CrossAttention: "vector",
}
"""Type of a module -> role of its own parameters; every `bias` outside of norms is a `vector`."""


def build_model(cfg: config.ModelConfig, vocab: int, device: torch.device | str = "meta") -> Transformer:
    """The model of a config with `vocab` rows of embedding; values are set by `initialize` or a checkpoint."""
    with torch.device(device):
        embedding = Embedding(vocab, cfg.embedding.width or cfg.width)
        encoder = Stack(**_stack(cfg.encoder, first=cfg.layers)) if cfg.kind == "encoder_decoder" else None
        stack = _stack(cfg, cross=encoder is not None)
        return Transformer(embedding=embedding, head=_head(cfg, vocab, embedding), encoder=encoder, **stack)


def _stack(cfg: config.ModelConfig, cross: bool = False, first: int = 0) -> dict[str, Any]:
    """What a Stack is made of; its layers count from `first` where randomness is keyed by them."""
    bidirectional = cfg.kind == "encoder"
    return {
        "kind": "bidirectional" if bidirectional else "causal",
        "positions": _added_positions(cfg),
        "bias": _bias(cfg, bidirectional),
        "entrance": _entrance(cfg),
        "dropout": Dropout(cfg.dropout, first, site=0),
        "blocks": {str(i): _block(cfg, i, first + i, cross) for i in range(cfg.layers)},
        "norm": _norm(cfg) if cfg.final_norm else None,
    }


def _norm(cfg: config.ModelConfig, part: config.NormConfig | None = None) -> nn.Module | None:
    chosen: Any = part or cfg.norm
    return NORMS[type(chosen)](cfg.width, chosen) if type(chosen) in NORMS else chosen.build(cfg.width)


def _added_positions(cfg: config.ModelConfig) -> LearnedPositions | SinusoidalPositions | None:
    match cfg.position:
        case config_position.LearnedPositionsConfig():
            return LearnedPositions(cfg.width, cfg.position)
        case config_position.SinusoidalPositionsConfig():
            return SinusoidalPositions(cfg.width, cfg.position)
    return None


def _bias(cfg: config.ModelConfig, bidirectional: bool) -> nn.Module | None:
    match cfg.position:
        case config_position.AlibiConfig():
            return Alibi(cfg.heads)
        case config_position.RelativeBucketsConfig():
            return RelativeBuckets(cfg.heads, cfg.position, bidirectional)
    return None


def _entrance(cfg: config.ModelConfig) -> InputLayers | None:
    part = cfg.embedding
    if part == config.EmbeddingConfig():
        return None
    project = Linear(part.width, cfg.width, bias=False) if part.width else None
    types = TokenTypes(part.types, cfg.width) if part.types else None
    return InputLayers(part.scale, project, types, _norm(cfg) if part.norm else None)


def _head(cfg: config.ModelConfig, vocab: int, embedding: Embedding) -> Head:
    part, width = cfg.head, cfg.embedding.width or cfg.width
    if isinstance(part, config_head.LabelHeadConfig):
        return _label_head(cfg, part)
    tied_to = embedding if part.tied else None
    if isinstance(part, config_head.MaskedHead):
        norm = _norm(cfg)
        assert norm is not None
        return Head(vocab, width, tied_to, Transform(cfg.width, part.dense_bias, part.activation, norm), part.bias)
    before = Scaled(part.scale) if part.scale != 1 else None
    if cfg.embedding.width:
        before = Linear(cfg.width, width, bias=False)
    head = Head(vocab, width, tied_to, before, part.bias, part.softcap)
    if head.bias is not None and cfg.kind == "encoder_decoder":  # BART's final_logits_bias, a constant in transformers
        head.bias.requires_grad_(False)
    return head


def _label_head(cfg: config.ModelConfig, part: config_head.LabelHeadConfig) -> LabelHead:
    transform, dense = None, part.transform
    if isinstance(dense, config_head.DenseTransform):
        transform = Transform(cfg.width, dense.bias, dense.activation, _norm(cfg) if dense.norm else None)
    return LABEL_HEADS[type(part)](cfg.width, part, transform)


def _block(cfg: config.ModelConfig, number: int, layer: int, cross: bool) -> nn.Module:
    own, rate = cfg.layer(number), cfg.stochastic_depth * (number + 1) / cfg.layers
    attention, mlp = part(own.attention, own, layer), part(own.mlp, own, layer)
    residual_adds = _residual_add(cfg, rate, layer, 1), _residual_add(cfg, rate, layer, 2)
    if isinstance(cfg.block, config.Parallel):
        first = _norm(cfg)
        assert first is not None
        return ParallelBlock(attention, mlp, (first, None if cfg.block.shared_norm else _norm(cfg)), residual_adds)
    norms = _norms(cfg, cfg.attention_norm(number)), _norms(cfg, cfg.norm)
    attend_across = (
        (CrossAttention(own, layer), _norms(cfg, cfg.norm), _residual_add(cfg, rate, layer, 3)) if cross else None
    )
    return Block(attention, mlp, norms, residual_adds, attend_across)


def part(chosen: Any, cfg: config.ModelConfig, layer: int) -> Any:
    """The module of a part's config in a layer; a part from outside builds itself."""
    return PARTS[type(chosen)](cfg, layer) if type(chosen) in PARTS else chosen.build(cfg, layer)


def _norms(cfg: config.ModelConfig, chosen: config.NormConfig) -> Norms:
    match cfg.block:
        case config.PreNorm():
            return Norms(before=_norm(cfg, chosen))
        case config.PostNorm():
            return Norms(sum=_norm(cfg, chosen))
        case config.OutputNorm():
            return Norms(out=_norm(cfg, chosen))
        case config.SandwichNorm():
            return Norms(before=_norm(cfg, chosen), out=_norm(cfg, chosen))
    raise AssertionError(cfg.block)


def _residual_add(cfg: config.ModelConfig, rate: float, layer: int, site: int) -> ResidualAdd:
    multiplier = cfg.block.multiplier if isinstance(cfg.block, config.PreNorm) else 1.0
    return ResidualAdd(Dropout(cfg.dropout, layer, site), RowDropout(rate, layer, site + 8), multiplier)


def parameter_roles(model: nn.Module) -> dict[str, str]:
    """Role of each parameter, by the type of its module: embedding, position, head, matrix, norm or vector.

    Optimizer groups and decay follow from roles, never from patterns over names.
    """
    roles = {}
    for prefix, module in model.named_modules():
        for name, _ in module.named_parameters(recurse=False):
            role = ROLES.get(type(module)) or str(module.role)
            roles[f"{prefix}.{name}"] = "vector" if name == "bias" and role != "norm" else role
    return roles
