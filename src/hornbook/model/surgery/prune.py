"""Smaller models from larger ones: whole heads, MLP channels and layers taken out, by their importance on some text.

A gate of 1 on the output of a head, or of a channel, has the gradient sum(w * dL/dw) over the weights that read it:
how much the loss changes, to first order, if it is taken out. Importance is the mean of its absolute value over rows of
text (Michel et al. 2019, arXiv 1905.10650; Molchanov et al. 2019, arXiv 1906.10771). A layer's is 1 - cos(x, y) of the
residual stream before and behind it, the mean over tokens (ShortGPT: Men et al. 2024, arXiv 2403.03853).

Each layer keeps as many heads and channels as the others, so the result is an ordinary model. Heads that share keys and
values go together. What is lost comes back by training on, best with the larger model as teacher (Minitron:
Muralidharan et al. 2024, arXiv 2407.14679).
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hornbook.errors import UsageError
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.mlp_config import GLUConfig, PlainMLPConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.transformer import Transformer

Stream = Iterable[tuple[str, Tensor]]
_BLOCK = re.compile(r"blocks\.(\d+)\.(.+)")
_ROWS_OF_HEADS, _ROWS_OF_CHANNELS = ("attention.query", "attention.key", "attention.value"), ("mlp.up", "mlp.gate")
POSITIONS = ("rope", "learned", "none", "sinusoidal")
"""Kinds of positions that are the same for all heads."""


@dataclass(frozen=True)
class Importance:
    """Of one model, on some text; float64."""

    heads: Tensor
    """[layers, key-value heads]: heads that share keys and values as one."""
    channels: Tensor
    """[layers, hidden]"""
    layers: Tensor
    """[layers]"""


@dataclass(frozen=True)
class Kept:
    """What stays, by number in the larger model, ascending."""

    layers: list[int]
    heads: dict[int, list[int]]
    """Key-value heads of each layer that stays."""
    channels: dict[int, list[int]]


class Meter:
    """Adds up importance over rows: `with Meter(model) as meter`, a forward and a backward pass, `meter.take()`."""

    def __init__(self, model: Transformer, config: ModelConfig) -> None:
        self._model, self._config, self._rows = model, config, 0
        count = config.layers
        self._heads = torch.zeros(count, config.kv_heads, dtype=torch.float64)
        self._channels = torch.zeros(count, config.hidden, dtype=torch.float64)
        self._layers = torch.zeros(count, dtype=torch.float64)
        self._hooks: list[Any] = []

    def __enter__(self) -> "Meter":
        for number, block in enumerate(self._model.blocks.values()):

            def look(_: Any, given: Any, made: Any, number: int = number) -> None:
                before, after = given[0].detach().float(), made[0].detach().float()
                self._layers[number] += float(1 - torch.cosine_similarity(before, after, -1).mean())

            self._hooks.append(block.register_forward_hook(look))
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self._hooks:
            hook.remove()

    def take(self) -> None:
        """Add the gates' gradients of one row, and drop the gradients."""
        for number, block in enumerate(self._model.blocks.values()):
            out, down = (_gates(part.weight) for part in (block.attention.out, block.mlp.down))  # pyright: ignore
            self._heads[number] += out.view(self._config.kv_heads, -1).sum(1).abs()
            self._channels[number] += down.abs()
        self._model.zero_grad(set_to_none=True)
        self._rows += 1

    def importance(self) -> Importance:
        """Means over rows."""
        if not self._rows:
            raise UsageError("there is no text to measure importance on: give --data with more of it")
        return Importance(*(each / self._rows for each in (self._heads, self._channels, self._layers)))


def _gates(weight: Tensor) -> Tensor:
    """[inputs]: gradient of a gate on each input of a matrix [outputs, inputs]."""
    assert weight.grad is not None, "call backward first"
    return (weight.detach().double() * weight.grad.double()).sum(0).cpu()


def pruned(cfg: ModelConfig, heads: int | None, hidden: int | None, layers: int | None) -> ModelConfig:
    """`cfg` with fewer heads, channels and layers; None keeps them. UsageError where that is no smaller model."""
    group = cfg.heads // cfg.kv_heads
    for name, asked, there in (
        ("--heads", heads, cfg.heads),
        ("--hidden", hidden, cfg.hidden),
        ("--layers", layers, cfg.layers),
    ):
        if asked is not None and not 1 <= asked <= there:
            raise UsageError(
                f"{name} {asked}: the model has {there:,}, and one at least must stay: take 1 to {there:,}"
            )
    if heads is not None and heads % group:
        fitting = ", ".join(map(str, range(group, cfg.heads + 1, group)))
        raise UsageError(f"--heads {heads}: {group} heads share keys and values, and go together: take {fitting}")
    _refuse_unfit(cfg, heads)
    changes: dict[str, Any] = {"layers": layers or cfg.layers}
    if heads is not None:
        assert isinstance(cfg.attention, FullAttentionConfig)
        kv_heads = None if group == 1 else heads // group
        own = cfg.attention.model_copy(update={"head_dim": cfg.head_dim, "kv_heads": kv_heads})
        changes |= {"heads": heads, "attention": own}
    if hidden is not None:
        changes["mlp"] = cfg.mlp.model_copy(update={"hidden": hidden})
    return cfg.model_copy(update=changes)


def _refuse_unfit(cfg: ModelConfig, heads: int | None) -> None:
    """UsageError naming the part of a model that cannot be cut."""
    if cfg.kind != "decoder":
        raise UsageError(f"model.kind is {cfg.kind!r}: only decoders are pruned")
    if cfg.first or cfg.pattern:
        raise UsageError(
            "the model's layers differ (model.first, model.pattern): only models of equal layers are pruned"
        )
    attention = cfg.attention
    if not isinstance(attention, FullAttentionConfig) or not isinstance(cfg.mlp, PlainMLPConfig | GLUConfig):
        kinds = f"attention {cfg.attention.kind}, MLP {cfg.mlp.kind}"
        raise UsageError(f"{kinds}: only models with attention full and MLP glu or mlp are pruned")
    if heads is not None and attention.qk_norm == "full":
        raise UsageError("--heads: a norm over all heads (qk_norm full) would be another without some: leave it out")
    if heads is not None and cfg.position.kind not in POSITIONS:
        raise UsageError(f"--heads: positions of kind {cfg.position.kind!r} are others for each head: leave it out")


def whole(cfg: ModelConfig) -> Kept:
    """All of a model."""
    layers = list(range(cfg.layers))
    heads, channels = list(range(cfg.kv_heads)), list(range(cfg.hidden))
    return Kept(layers, dict.fromkeys(layers, heads), dict.fromkeys(layers, channels))


def choose(found: Importance, new: ModelConfig) -> Kept:
    """The most important parts."""
    layers = _largest(found.layers, new.layers)
    return Kept(
        layers,
        {number: _largest(found.heads[number], new.kv_heads) for number in layers},
        {number: _largest(found.channels[number], new.hidden) for number in layers},
    )


def _largest(values: Tensor, count: int) -> list[int]:
    """Numbers of the largest, ascending; of equal ones the first."""
    return sorted(torch.sort(values, descending=True, stable=True).indices[:count].tolist())


def prune(stream: Stream, old: ModelConfig, kept: Kept) -> Iterator[tuple[str, Tensor]]:
    """The tensors of the smaller model from those of the larger."""
    targets = {source: target for target, source in enumerate(kept.layers)}
    for name, tensor in stream:
        match = _BLOCK.fullmatch(name)
        if match is None:
            yield name, tensor
        elif (source := int(match[1])) in targets:
            yield f"blocks.{targets[source]}.{match[2]}", _cut(match[2], tensor, source, old, kept)


def _cut(rest: str, tensor: Tensor, layer: int, old: ModelConfig, kept: Kept) -> Tensor:
    """What stays of one parameter of a block; `rest`: its name below the block."""
    part = rest.rpartition(".")[0]
    group, heads = old.heads // old.kv_heads, torch.tensor(kept.heads[layer])
    if part in _ROWS_OF_CHANNELS:
        return tensor[kept.channels[layer]]
    if rest == "mlp.down.weight":
        return tensor[:, kept.channels[layer]]
    if part in _ROWS_OF_HEADS:
        return tensor[_spread(heads, old.head_dim * (group if part == "attention.query" else 1))]
    if rest == "attention.out.weight":
        return tensor[:, _spread(heads, old.head_dim * group)]
    if rest == "attention.sinks":
        return tensor[_spread(heads, group)]
    return tensor


def _spread(numbers: Tensor, size: int) -> Tensor:
    """Numbers of the rows of blocks of `size` rows."""
    return (numbers[:, None] * size + torch.arange(size)).flatten()
