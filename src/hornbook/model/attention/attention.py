"""Multi-head attention (Vaswani et al. 2017) with any number of key-value heads (GQA, arXiv 2305.13245)."""

from collections.abc import Callable
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.kernels.team import supports
from hornbook.model.attention.attend import attend
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.attention.position import Layout, Rope, Rotation, rotate
from hornbook.model.config import model_config as config
from hornbook.model.config import position_config as config_position
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.norm_config import RMSNormConfig
from hornbook.model.cpu.heads import SplitHeads
from hornbook.model.forward_context import Context
from hornbook.model.layers.dropout import AttentionDropout, layer_number, site_keys
from hornbook.model.layers.linear import Linear, fused_linear
from hornbook.model.layers.norm import RMSNorm
from hornbook.model.layers.saved_tensors import applied, cheap

SITE = 16
"""Dropout site of attention probabilities in a layer; the next one is that of attention across stacks."""
Heads = Float[Tensor, "batch heads time head_dim"]


class FullAttention(nn.Module):
    """Each position sees others of its own sequence. The number of heads follows from the tensors' widths."""

    role: ClassVar = "vector"
    beside: ClassVar[tuple[str, ...]] = ("query", "key", "value")
    """Layers whose products are one."""

    site = SITE

    def __init__(self, cfg: config.ModelConfig, layer: int) -> None:
        super().__init__()
        part, width = cfg.attention, cfg.width
        assert isinstance(part, FullAttentionConfig)
        self.cfg, self.layer, self.head_dim = part, layer, cfg.head_dim
        self.number, self.first_head = layer_number(layer), 0
        self.rope = Rope(cfg.head_dim, cfg.position) if isinstance(cfg.position, config_position.RopeConfig) else None
        self.query = Linear(width, cfg.heads * cfg.head_dim, part.bias)
        self.key = Linear(width, cfg.kv_heads * cfg.head_dim, part.bias)
        self.value = Linear(width, cfg.kv_heads * cfg.head_dim, part.bias)
        self.out = Linear(cfg.heads * cfg.head_dim, width, part.out_bias)
        self.query_norm, self.key_norm = (_norm(cfg, part, count) for count in (cfg.heads, cfg.kv_heads))
        self.sinks = nn.Parameter(torch.empty(cfg.heads)) if part.sinks else None
        self.attend: Callable[..., Heads] | None = None
        """Called in place of `attend`, where the rest of the rows is elsewhere (`AttentionMask.part`)."""
        self.prefix: nn.Module | None = None
        """Puts trained keys and values where `Context.prefix` says, called with (key, value, prefix)."""
        self.gated: nn.Module | None = None
        """Looks beyond the rows, called with (layer, query); added to what the heads found."""

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Float[Tensor, "batch time width"]:
        query, key, value = self._project(x, context)
        if self.prefix is not None and context.prefix is not None:
            key, value = self.prefix(key, value, context.prefix)
        if context.cache is not None:
            key, value = context.cache.append(self.layer, key, value)
        return self._answer(query, key, value, context.mask.narrowed(self.cfg.window), context.bias, context)

    def _answer(
        self, query: Heads, key: Heads, value: Heads, mask: AttentionMask, bias: Tensor | None, context: Context
    ) -> Float[Tensor, "batch time width"]:
        """What the heads find, through the output projection."""
        options = {"scale": self.cfg.scale, "softcap": self.cfg.softcap, "bias": bias, "sinks": self.sinks}
        drop = dropped(context, self.number, self.site, self.cfg.dropout, self.first_head)
        found = (self.attend or attend)(query, key, value, mask, **options, dropout=drop)
        if self.gated is not None:
            found = found + self.gated(self, query)
        return self.out(found.transpose(1, 2).flatten(2))

    def _project(self, x: Tensor, context: Context) -> tuple[Heads, Heads, Heads]:
        """Queries, keys and values, normalised and rotated."""
        layers = [self.query, self.key, self.value]
        widths, rotation = [layer.weight.shape[0] for layer in layers], context.rotation(self.rope)
        fused = fused_linear(x, layers)
        layout: Layout = "half" if self.rope is None else self.rope.cfg.layout
        if self.cfg.qk_norm == "full":
            query, key, value = fused.split(widths, -1)
            fused = torch.cat(
                [self._normalised(query, self.query_norm), self._normalised(key, self.key_norm), value], -1
            )
        fused = self._clipped(fused)
        counts = widths[0] // self.head_dim, widths[1] // self.head_dim
        if self.cfg.qk_norm != "head":
            return split_heads(fused, counts, rotation, layout)
        query, key, value = split_heads(fused, counts, None, layout)
        query, key = self._normalised(query, self.query_norm), self._normalised(key, self.key_norm)
        if rotation is not None:
            query, key = (cheap(_rotated, each, *rotation, layout) for each in (query, key))
        return query, key, value

    def unturned(self, layer: Linear, norm: nn.Module | None, x: Tensor) -> Heads:
        """Heads of one projection, normalised and clipped, without positions."""
        y = layer(x)
        if self.cfg.qk_norm == "full":
            y = self._normalised(y, norm)
        heads = split_heads(self._clipped(y), (layer.weight.shape[0] // self.head_dim, 0), None)[0]
        return self._normalised(heads, norm) if self.cfg.qk_norm == "head" else heads

    def _clipped(self, x: Tensor) -> Tensor:
        return x if self.cfg.clip is None else x.clamp(-self.cfg.clip, self.cfg.clip)

    @staticmethod
    def _normalised(x: Tensor, norm: nn.Module | None) -> Tensor:
        return x if norm is None else norm(x)


class CrossAttention(FullAttention):
    """Queries from a decoder's states; keys and values from `context.memory`, projected once where there is a cache.

    No positions: what is looked at is another sequence.
    """

    site = SITE + 1
    beside = ()

    def __init__(self, cfg: config.ModelConfig, layer: int) -> None:
        super().__init__(cfg, layer)
        self.rope = None

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Float[Tensor, "batch time width"]:
        assert context.cross is not None
        query = self.unturned(self.query, self.query_norm, x)
        key, value = self._memory(context)
        return self._answer(query, key, value, context.cross, None, context)

    def _memory(self, context: Context) -> tuple[Heads, Heads]:
        """Keys and values of the memory."""
        if context.cache is not None and self.layer in context.cache.fixed:
            return context.cache.fixed[self.layer]
        assert context.memory is not None
        # A node of its own adds up what keys and values say to the memory, then come the layers. Without it the order
        # of that sum, and its last bits, would be another under fully_shard, which puts such a node before each block.
        states = context.memory.states.view_as(context.memory.states)
        pair = self.unturned(self.key, self.key_norm, states), self.unturned(self.value, None, states)
        if context.cache is not None:
            context.cache.fixed[self.layer] = pair
        return pair


def split_heads(
    fused: Float[Tensor, "batch time all_heads"],
    counts: tuple[int, int],
    rotation: Rotation | None,
    layout: Layout = "half",
) -> tuple[Heads, Heads, Heads]:
    """Queries, keys and values that lie side by side; `counts` are heads and key-value heads. The first two turn."""
    dim = fused.shape[-1] // (counts[0] + 2 * counts[1])
    if supports(fused):
        none = torch.empty(1, fused.shape[1], 0)
        cos, sin = (none, none) if rotation is None else rotation
        return applied(SplitHeads, fused, counts, cos, sin, layout == "interleaved")
    query, key, value = fused.unflatten(-1, (-1, dim)).transpose(1, 2).split([counts[0], counts[1], counts[1]], dim=1)
    if rotation is not None:
        query, key = rotate(query, rotation, layout), rotate(key, rotation, layout)
    return query, key, value


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, layout: Layout) -> Tensor:
    return rotate(x, (cos, sin), layout)


def dropped(context: Context, layer: Tensor, site: int, rate: float, first_head: int = 0) -> AttentionDropout | None:
    """Dropout of a layer's attention probabilities, if there is any in this pass; `first_head`: of those present."""
    if rate == 0 or context.keys is None:
        return None
    return AttentionDropout(site_keys(context.keys, layer, site), rate, first_head)


def _norm(cfg: config.ModelConfig, part: FullAttentionConfig, heads: int) -> RMSNorm | None:
    """RMSNorm over each head or over all, with the eps of the model's norms if they have one."""
    if part.qk_norm == "none":
        return None
    eps = getattr(cfg.norm, "eps", RMSNormConfig().eps)
    return RMSNorm(cfg.head_dim if part.qk_norm == "head" else heads * cfg.head_dim, RMSNormConfig(eps=eps))
