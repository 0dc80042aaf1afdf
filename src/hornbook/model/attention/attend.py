"""Exact softmax attention over heads: the slow reference, and the choice of the fastest way for shape and device.

On CPU with gradients or many queries: tiles of queries against the keys they see (`tiled_attention.py`);
for a few new queries on a cache, and on other devices, torch's scaled_dot_product_attention. docs/speed.md has the
measurements behind this rule.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from hornbook.model.attention.mask import AttentionMask, dense_mask
from hornbook.model.attention.tiled_attention import Scoring, TiledAttention
from hornbook.model.layers.dropout import AttentionDropout
from hornbook.model.layers.products import is_widened, matmul
from hornbook.model.layers.saved_tensors import is_rebuilding

Heads = Float[Tensor, "batch heads time dim"]
FEW_QUERIES = 16
"""Up to this number of queries a tile is not worth its preparation."""


def reference_attention(query: Heads, key: Heads, value: Heads, mask: AttentionMask, scoring: Scoring) -> Heads:
    """Attention written as its formula: softmax(scale Q K^T + bias) V over the keys each query sees.

    Each group of heads / kv_heads queries shares a key-value head. A query that sees nothing gets zeros.
    """
    scale, softcap, bias, sinks, dropout = scoring
    groups, (queries, keys) = query.shape[1] // key.shape[1], (query.shape[2], key.shape[2])
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = matmul(query, key.transpose(-1, -2)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + spread(bias, queries, keys)
    allowed = dense_mask(mask, query.shape[0], queries, keys, query.device)[:, None]
    scores = scores.masked_fill(~allowed, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    probabilities = torch.where(allowed, scores.softmax(-1)[..., :keys], 0.0).to(query.dtype)
    if dropout is not None:
        keep = dropout.keep(slice(None), query.shape[1], range(keys - queries, keys), range(keys))
        probabilities = probabilities * keep / (1 - dropout.rate)
    return matmul(probabilities, value)


def spread(bias: Float[Tensor, "heads distances"], queries: int, keys: int) -> Float[Tensor, "heads queries keys"]:
    """The table's score of each pair; queries are the last of the keys' positions."""
    device = bias.device
    distance = torch.arange(keys, device=device) - torch.arange(keys - queries, keys, device=device)[:, None]
    return bias[:, distance + bias.shape[1] // 2]


def attend(
    query: Heads,
    key: Heads,
    value: Heads,
    mask: AttentionMask,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout: AttentionDropout | None = None,
) -> Heads:
    """Attention by the fastest way; arguments as of `Scoring`, `scale` is 1 / sqrt(dim) if not given."""
    scoring = Scoring(query.shape[-1] ** -0.5 if scale is None else scale, softcap, bias, sinks, dropout)
    plain = type(query) is Tensor and query.device.type == "cpu" and not torch.compiler.is_compiling()
    if plain and query.shape[2] > FEW_QUERIES:
        rest = scoring._replace(bias=None, sinks=None)
        keep = torch.is_grad_enabled() and not is_rebuilding()
        return TiledAttention.apply(query, key, value, bias, sinks, mask, rest, keep)
    if softcap is None and sinks is None and dropout is None:
        return _attend_by_torch(query, key, value, mask, scoring)
    return reference_attention(query, key, value, mask, scoring)


def _attend_by_torch(query: Heads, key: Heads, value: Heads, mask: AttentionMask, scoring: Scoring) -> Heads:
    queries, keys, bias = query.shape[2], key.shape[2], scoring.bias
    whole = mask.unbroken and mask.window is None
    causal = whole and mask.kind == "causal" and queries == keys and bias is None
    seen = None
    if not (causal or (whole and (mask.kind != "causal" or queries == 1))):
        seen = dense_mask(mask, query.shape[0], queries, keys, query.device)[:, None]
    if bias is not None:
        scores = spread(bias, queries, keys)
        seen = scores if seen is None else scores.masked_fill(~seen, -math.inf)
    dtype = torch.float32 if is_widened(query) else query.dtype
    return F.scaled_dot_product_attention(
        query.to(dtype),
        key.to(dtype),
        value.to(dtype),
        attn_mask=seen if seen is None or seen.dtype == torch.bool else seen.to(dtype),
        is_causal=causal,
        scale=scoring.scale,
        enable_gqa=query.shape[1] != key.shape[1],
    ).to(query.dtype)
