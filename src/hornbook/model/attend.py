"""Exact softmax attention over heads: the slow reference, and the choice of the fastest way for shape and device.

On CPU with gradients or many queries: blocks of queries against the keys up to their end (`hornbook.model.blocks`);
for a few new queries on a cache, and on other devices, torch's scaled_dot_product_attention. docs/speed.md has the
measurements behind this rule.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from hornbook.model.blocks import BlockAttention
from hornbook.model.position import Lengths

Heads = Float[Tensor, "batch heads time dim"]
FEW_QUERIES = 16
"""Up to so many queries a block is not worth its preparation."""


def reference_attention(query: Heads, key: Heads, value: Heads, lengths: Lengths | None = None) -> Heads:
    """Causal attention written as its formula, softmax(Q K^T / sqrt(d)) V, confined to documents.

    Queries are the last `time` of the keys' positions; each group of heads / kv_heads queries shares a key-value head.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    allowed = causal_mask(query.shape[2], key.shape[2], query.device)
    if lengths is not None:
        allowed = allowed & document_mask(lengths, query.device)[:, None]
    return scores.masked_fill(~allowed, -math.inf).softmax(-1) @ value


def causal_mask(queries: int, keys: int, device: torch.device) -> Bool[Tensor, "queries keys"]:
    """True where a query may look: the last query at all keys, each earlier one at one key fewer."""
    return torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)


def document_mask(lengths: Lengths, device: torch.device) -> Bool[Tensor, "batch time time"]:
    """True where both positions lie in the same document."""
    rows = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in lengths]
    documents = torch.stack(rows).to(device)
    return documents[:, :, None] == documents[:, None, :]


def attend(query: Heads, key: Heads, value: Heads, lengths: Lengths | None = None) -> Heads:
    """Causal attention; shapes as `reference_attention`."""
    if lengths is not None and all(len(row) == 1 for row in lengths):
        lengths = None
    plain = type(query) is Tensor and query.device.type == "cpu" and not torch.compiler.is_compiling()
    if plain and query.shape[2] > FEW_QUERIES:
        out = BlockAttention.apply(query, key, value, lengths, torch.is_grad_enabled())
        assert isinstance(out, Tensor)
        return out
    return _attend_by_torch(query, key, value, lengths)


def _attend_by_torch(query: Heads, key: Heads, value: Heads, lengths: Lengths | None) -> Heads:
    queries, keys = query.shape[2], key.shape[2]
    mask = None
    if lengths is not None:
        mask = causal_mask(queries, keys, query.device) & document_mask(lengths, query.device)[:, None]
    elif 1 < queries < keys:
        mask = causal_mask(queries, keys, query.device)
    return F.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None and queries == keys,
        enable_gqa=query.shape[1] != key.shape[1],
    )
