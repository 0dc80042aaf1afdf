"""Attention whose keys and values come from one small latent vector per position (MLA, DeepSeek-V2, arXiv 2405.04434).

A head's key is two parts: one made from the latent, without positions, and one that turns and that all heads share. A
cache holds the latent and the shared part alone. For a few new queries nothing is made from what it holds: with
k = U c, the product q k is (U^T q) c, so queries go down to the latents instead of the latents up to keys, and likewise
the values' projection comes after the sum over positions (section 2.1.2). The latents then are the one key-value head.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hornbook.model.attention.attend import FEW_QUERIES, attend
from hornbook.model.attention.attention import SITE, dropped, split_heads
from hornbook.model.attention.position import Rope, Rotation, rotate
from hornbook.model.attention.rope_scaling import yarn_mscale
from hornbook.model.config import model_config as config
from hornbook.model.config import position_config as config_position
from hornbook.model.config.attention_config import LatentAttentionConfig
from hornbook.model.config.norm_config import RMSNormConfig
from hornbook.model.forward_context import Context
from hornbook.model.layers.dropout import layer_number
from hornbook.model.layers.linear import Linear
from hornbook.model.layers.norm import RMSNorm
from hornbook.model.layers.products import matmul

LATENT_NORM = RMSNormConfig(eps=1e-6)
"""Of both latents, whatever the model's norm."""
Heads = Float[Tensor, "batch heads time dim"]


class LatentAttention(nn.Module):
    """Projections `query_down`, `query_up` (or `query`), `kv_down`, `kv_up`, `out`; each head's queries and keys are
    `nope_dim` dims without positions, then `rope_dim` dims that turn."""

    def __init__(self, cfg: config.ModelConfig, layer: int) -> None:
        super().__init__()
        part, width = cfg.attention, cfg.width
        assert isinstance(part, LatentAttentionConfig)
        self.cfg, self.layer, self.number, self.first_head = part, layer, layer_number(layer), 0
        self.rope = Rope(part.rope_dim, cfg.position) if isinstance(cfg.position, config_position.RopeConfig) else None
        self.scale = _scale(part, cfg.position)
        queries = cfg.heads * (part.nope_dim + part.rope_dim)
        if part.query_rank is None:
            self.query = Linear(width, queries, bias=False)
        else:
            self.query_down = Linear(width, part.query_rank, part.bias)
            self.query_norm = RMSNorm(part.query_rank, LATENT_NORM)
            self.query_up = Linear(part.query_rank, queries, bias=False)
        self.kv_down = Linear(width, part.kv_rank + part.rope_dim, part.bias)
        self.kv_norm = RMSNorm(part.kv_rank, LATENT_NORM)
        self.kv_up = Linear(part.kv_rank, cfg.heads * (part.nope_dim + part.value_dim), bias=False)
        self.out = Linear(cfg.heads * part.value_dim, width, part.bias)
        self.attend: Callable[..., Heads] | None = None
        """Called in place of `attend`, as of `FullAttention`."""
        self.share: Callable[[Tensor], Tensor] | None = None
        """What becomes of the latent and the key that all heads share, before heads read them."""

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Float[Tensor, "batch time width"]:
        rotation = context.rotation(self.rope)
        query, held = self._queries(x, rotation), self._compressed(x, rotation)
        if context.cache is not None:
            held = context.cache.append(self.layer, held, held[..., :0])[0]
        if context.cache is not None and query.shape[2] <= FEW_QUERIES and self.kv_up.adapter is None:
            heads = self._attend_to_latents(query, held, context)
        else:
            heads = self._attend(query, *self._expanded(held), context)
        return self.out(heads.transpose(1, 2).flatten(2))

    def _queries(self, x: Tensor, rotation: Rotation | None) -> Heads:
        low = self.cfg.query_rank is not None
        fused = self.query_up(self.query_norm(self.query_down(x))) if low else self.query(x)
        heads = fused.shape[-1] // (self.cfg.nope_dim + self.cfg.rope_dim)
        nope, rotary = split_heads(fused, (heads, 0), None)[0].split([self.cfg.nope_dim, self.cfg.rope_dim], -1)
        return torch.cat([nope, self._rotated(rotary, rotation)], -1)

    def _compressed(self, x: Tensor, rotation: Rotation | None) -> Float[Tensor, "batch 1 time held"]:
        """The normalised latent, and the key that all heads share: what a cache has to hold."""
        latent, shared = self.kv_down(x).split([self.cfg.kv_rank, self.cfg.rope_dim], -1)
        held = torch.cat([self.kv_norm(latent)[:, None], self._rotated(shared[:, None], rotation)], -1)
        return held if self.share is None else self.share(held)

    def _rotated(self, x: Heads, rotation: Rotation | None) -> Heads:
        return x if rotation is None or self.rope is None else rotate(x, rotation, self.rope.cfg.layout)

    def _expanded(self, held: Tensor) -> tuple[Heads, Heads]:
        """Keys and values of every head."""
        latent, shared = held.split([self.cfg.kv_rank, self.cfg.rope_dim], -1)
        up = self.kv_up(latent[:, 0]).unflatten(-1, (-1, self.cfg.nope_dim + self.cfg.value_dim)).transpose(1, 2)
        nope, value = up.split([self.cfg.nope_dim, self.cfg.value_dim], -1)
        return torch.cat([nope, shared.expand(-1, nope.shape[1], -1, -1)], -1), value

    def _attend(self, query: Heads, key: Heads, value: Heads, context: Context) -> Heads:
        drop = dropped(context, self.number, SITE, self.cfg.dropout, self.first_head)
        options = {"scale": self.scale, "bias": context.bias, "dropout": drop}
        return (self.attend or attend)(query, key, value, context.mask, **options)

    def _attend_to_latents(self, query: Heads, held: Tensor, context: Context) -> Heads:
        """The same result; products with the projections up stand on the side of the few queries."""
        up = self.kv_up.matrix(query.dtype).unflatten(0, (-1, self.cfg.nope_dim + self.cfg.value_dim))
        up_key, up_value = up.split([self.cfg.nope_dim, self.cfg.value_dim], 1)
        nope, rotary = query.split([self.cfg.nope_dim, self.cfg.rope_dim], -1)
        query = torch.cat([matmul(nope, up_key[None]), rotary], -1)
        found = self._attend(query, held, held[..., : self.cfg.kv_rank], context)
        return matmul(found, up_value.transpose(-1, -2)[None])


def _scale(part: LatentAttentionConfig, position: config_position.PositionConfig) -> float:
    """1 / sqrt(dims of a key), times what YaRN's second weight took out of each of two rotations."""
    scale = (part.nope_dim + part.rope_dim) ** -0.5
    scaling = position.scaling if isinstance(position, config_position.RopeConfig) else None
    if isinstance(scaling, config_position.YaRN) and scaling.mscale_all_dim:
        scale *= yarn_mscale(scaling.factor, scaling.mscale_all_dim) ** 2
    return scale
