"""Starting points made from a smaller, larger or denser model: streams of tensors in, streams of tensors out.

Layers are copied or left out (stacking: Gong et al. 2019; interpolation: Chang et al. 2018, arXiv 1710.10348). With
`identity` a layer that is copied again begins with zeros where it writes to the residual stream, so that the grown
model computes what the small one did, bit for bit, and its new layers still get gradients (Chen et al. 2016, arXiv
1511.05641, for depth).

Experts are copies of a dense MLP beside a new router (sparse upcycling: Komatsuzaki et al. 2023, arXiv 2212.05055):
where the router's weights sum to 1, the mixture of equals is the dense MLP.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config import mlp_config as config_mlp
from hornbook.model.config import model_config as config
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.init.init import initial_value
from hornbook.model.init.schemes import STREAM_WRITERS
from hornbook.settings.recipe import Recipe, cross_check

Order = Literal["stack", "spread"]
"""Copies of the whole stack on top of it, or each layer's copies next to it."""

Stream = Iterable[tuple[str, Tensor]]

_BLOCK = re.compile(r"(encoder\.)?blocks\.(\d+)\.(.+)")


def layer_sources(old: int, new: int, order: Order = "stack") -> list[int]:
    """Which of `old` layers each of `new` ones is; where some are left out, first and last stay and the rest evenly."""
    if new < old:
        return [round(i * (old - 1) / max(new - 1, 1)) for i in range(new)]
    return [i % old if order == "stack" else i * old // new for i in range(new)]


# ---- Depth


def resized(cfg: ModelConfig, layers: int, encoder_layers: int | None = None, order: Order = "stack") -> ModelConfig:
    """`cfg` with another number of layers. UsageError where a layer would be made from one of another kind."""
    new = cfg.model_copy(update={"layers": layers})
    if cfg.kind == "encoder_decoder":
        new = new.model_copy(update={"encoder_layers": encoder_layers or cfg.encoder.layers})
    elif encoder_layers is not None:
        raise UsageError(f"a model of kind {cfg.kind!r} has no encoder beside it: give its layers alone")
    for key, text in cross_check(Recipe(model=new)):
        if key.startswith("model."):
            raise UsageError(f"{key} {text}")
    _refuse_other_kinds(cfg, new, order)
    if cfg.kind == "encoder_decoder":
        _refuse_other_kinds(cfg.encoder, new.encoder, order)
    return new


def _refuse_other_kinds(old: ModelConfig, new: ModelConfig, order: Order) -> None:
    for number, source in enumerate(layer_sources(old.layers, new.layers, order)):
        ours, theirs = new.layer(number), old.layer(source)
        differing = [part for part in ("attention", "mlp", "position") if getattr(ours, part) != getattr(theirs, part)]
        if differing:
            raise UsageError(
                f"layer {number} would be a copy of layer {source}, but their {differing[0]} is not the same "
                "(model.first, model.pattern): choose a number of layers at which the pattern repeats"
            )


def regrow(
    stream: Stream, old: ModelConfig, new: ModelConfig, order: Order, *, identity: bool
) -> Iterator[tuple[str, Tensor]]:
    """The tensors of `new` (`resized`) from those of `old`. identity: layers copied again add nothing at first."""
    if identity and isinstance(new.block, config.PostNorm):
        raise UsageError("behind a norm of the sum (model.block.kind post) no layer is the identity: grow it as it is")
    sources = {
        "": layer_sources(old.layers, new.layers, order),
        "encoder.": layer_sources(old.encoder.layers, new.encoder.layers, order),
    }
    for name, tensor in stream:
        match = _BLOCK.fullmatch(name)
        if match is None:
            yield name, tensor
            continue
        prefix, number, rest = match[1] or "", int(match[2]), match[3]
        targets = [target for target, source in enumerate(sources[prefix]) if source == number]
        for copy, target in enumerate(targets):
            silent = identity and copy > 0 and adds_to_stream(rest)
            yield f"{prefix}blocks.{target}.{rest}", torch.zeros_like(tensor) if silent else tensor


def adds_to_stream(rest: str) -> bool:
    """Whether a block's parameter (its name below the block) is zero in a block that adds nothing to the stream."""
    parts = rest.removesuffix(".weight").removesuffix(".bias").split(".")
    if "out_norm" in parts[0]:
        return rest.endswith(".bias")
    return (parts[0], parts[-1]) in STREAM_WRITERS


# ---- Experts


def upcycled(cfg: ModelConfig, experts: config_mlp.ExpertsConfig) -> ModelConfig:
    """`cfg` with experts of the shape of its dense MLPs. UsageError where experts cannot be copies of those."""
    if not isinstance(cfg.mlp, config_mlp.GLUConfig) or cfg.mlp.bias:
        raise UsageError("experts are gated linear units without biases (model.mlp.kind glu): this model's MLP is not")
    if any(layer.mlp is not None for layer in [*cfg.first, *cfg.pattern]):
        raise UsageError("the model's layers have MLPs of several kinds (model.first, model.pattern): copies need one")
    if experts.shared_hidden is not None:
        raise UsageError(
            "an expert that serves every token has nothing to be a copy of: leave model.mlp.shared_hidden out"
        )
    return cfg.model_copy(
        update={"mlp": experts.model_copy(update={"hidden": cfg.hidden, "activation": cfg.mlp.activation})}
    )


def preserves(experts: config_mlp.ExpertsConfig) -> bool:
    """Whether a mixture of equal experts is each of them: its weights sum to 1, and nobody is turned away."""
    router = experts.router
    whole = isinstance(router, config_mlp.SoftmaxRouterConfig | config_mlp.SigmoidRouterConfig) and router.renormalize
    return whole and getattr(router, "scale", 1.0) == 1 and experts.capacity is None


def upcycle(stream: Stream, new: ModelConfig, vocab: int, seed: int) -> Iterator[tuple[str, Tensor]]:
    """The tensors of `new` (`upcycled`) from those of the dense model; routers begin as in a new model."""
    assert isinstance(new.mlp, config_mlp.ExpertsConfig)
    model = build_model(new, vocab, "meta")
    left = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    for name, tensor in stream:
        if left.pop(name, None) is not None:
            yield name, tensor
        else:
            left.pop(experts := name.removesuffix(".weight"))
            yield experts, tensor.expand(new.mlp.count, *tensor.shape)
    yield from _routers(left, parameter_roles(model), new, seed)


def _routers(
    shapes: Mapping[str, tuple[int, ...]], roles: Mapping[str, str], cfg: ModelConfig, seed: int
) -> Iterator[tuple[str, Tensor]]:
    for name, shape in shapes.items():
        assert ".router." in name, f"nothing to make {name} of"
        yield name, initial_value(name, roles[name], shape, cfg, seed)
