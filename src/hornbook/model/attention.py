"""Multi-head attention (Vaswani et al. 2017) with any number of key-value heads (GQA, arXiv 2305.13245)."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.model import config
from hornbook.model.attend import attend
from hornbook.model.attention_dropout import Drop
from hornbook.model.context import Context
from hornbook.model.cpu.heads import SplitHeads
from hornbook.model.cpu.team import supports
from hornbook.model.dropout import site_keys
from hornbook.model.linear import Linear, fused_linear
from hornbook.model.norm import RMSNorm
from hornbook.model.position import Rope, rotate
from hornbook.model.sight import Sight

SITE = 8
"""Place of a layer where probabilities of attention are dropped; the next one is that of attention across stacks."""


class FullAttention(nn.Module):
    """Each position sees others of its own sequence. The number of heads follows from the tensors' widths."""

    site = SITE

    def __init__(self, cfg: config.ModelConfig, layer: int) -> None:
        super().__init__()
        part, width = cfg.attention, cfg.width
        assert isinstance(part, config.FullAttention)
        self.cfg, self.layer, self.head_dim = part, layer, cfg.head_dim
        self.rope = Rope(cfg.head_dim, cfg.position) if isinstance(cfg.position, config.Rope) else None
        self.query = Linear(width, cfg.heads * cfg.head_dim, part.bias)
        self.key = Linear(width, cfg.kv_heads * cfg.head_dim, part.bias)
        self.value = Linear(width, cfg.kv_heads * cfg.head_dim, part.bias)
        self.out = Linear(cfg.heads * cfg.head_dim, width, part.out_bias)
        self.query_norm = self._norm(cfg, cfg.heads)
        self.key_norm = self._norm(cfg, cfg.kv_heads)
        self.sinks = nn.Parameter(torch.empty(cfg.heads)) if part.sinks else None

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Float[Tensor, "batch time width"]:
        query, key, value = self._project(x, context)
        if context.cache is not None:
            key, value = context.cache.append(self.layer, key, value)
        sight = context.sight.narrowed(self.cfg.window)
        return self.out(self._attend(query, key, value, sight, context.bias, context))

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, sight: Sight, bias: Tensor | None, context: Context
    ) -> Float[Tensor, "batch time heads_width"]:
        drop = None
        if self.cfg.dropout and context.keys is not None:
            drop = Drop(site_keys(context.keys, self.layer, self.site), self.cfg.dropout)
        options = {"scale": self.cfg.scale, "softcap": self.cfg.softcap, "bias": bias}
        heads = attend(query, key, value, sight, **options, sinks=self.sinks, dropout=drop)
        return heads.transpose(1, 2).flatten(2)

    def _norm(self, cfg: config.ModelConfig, heads: int) -> RMSNorm | None:
        if cfg.attention.qk_norm == "none":
            return None
        width = cfg.head_dim if cfg.attention.qk_norm == "head" else heads * cfg.head_dim
        return RMSNorm(width, config.RMSNorm(eps=cfg.norm.eps))

    def _project(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values [batch, heads, time, head_dim], normalised and rotated."""
        layers = [self.query, self.key, self.value]
        fused = fused_linear(x, layers)
        if self.cfg.clip is not None:
            fused = fused.clamp(-self.cfg.clip, self.cfg.clip)
        rotation = context.rotation(self.rope)
        if self._kernel_serves(fused):
            counts = [layer.weight.shape[0] // self.head_dim for layer in layers]
            return SplitHeads.apply(fused, (counts[0], counts[1]), *rotation)
        query, key, value = fused.split([layer.weight.shape[0] for layer in layers], -1)
        return (
            self._turned(query, self.query_norm, rotation),
            self._turned(key, self.key_norm, rotation),
            self._heads(value),
        )

    def _kernel_serves(self, fused: Tensor) -> bool:
        rope = self.rope
        whole = rope is not None and rope.turned == rope.head_dim and rope.cfg.layout == "half"
        return whole and self.query_norm is None and supports(fused)

    def _turned(self, x: Tensor, norm: nn.Module | None, rotation) -> Tensor:
        """Heads of queries or keys, normalised over each head or over all, and rotated."""
        if norm is not None and self.cfg.qk_norm == "full":
            x = norm(x)
        x = self._heads(x)
        if norm is not None and self.cfg.qk_norm == "head":
            x = norm(x)
        return x if rotation is None else rotate(x, rotation, self.rope.cfg.layout)

    def _heads(self, x: Tensor) -> Float[Tensor, "batch heads time head_dim"]:
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)


class CrossAttention(FullAttention):
    """Queries from a decoder's states; keys and values from `context.memory`, projected once where there is a cache."""

    site = SITE + 1

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Float[Tensor, "batch time width"]:
        assert context.memory is not None
        query = self._turned(self._clipped(self.query(x)), self.query_norm, None)
        key, value = self._memory(context)
        sight = Sight("cross", context.sight.lengths, context.memory.lengths)
        return self.out(self._attend(query, key, value, sight, None, context))

    def _memory(self, context: Context) -> tuple[Tensor, Tensor]:
        """Keys and values [batch, kv_heads, source time, head_dim] of the memory."""
        held = None if context.cache is None else context.cache.fixed(self.layer)
        if held is not None:
            return held
        states = context.memory.states
        fused = self._clipped(fused_linear(states, [self.key, self.value]))
        key, value = fused.split([self.key.weight.shape[0], self.value.weight.shape[0]], -1)
        pair = self._turned(key, self.key_norm, None), self._heads(value)
        if context.cache is not None:
            context.cache.fix(self.layer, *pair)
        return pair

    def _clipped(self, x: Tensor) -> Tensor:
        return x if self.cfg.clip is None else x.clamp(-self.cfg.clip, self.cfg.clip)
