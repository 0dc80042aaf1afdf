"""Attention without tiles and kernels, which the tests compare with."""

import torch
from jaxtyping import Bool
from torch import Tensor

from hornbook.model.attention.attend import Heads, _formula, tables_of
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.attention.tiled_attention import Scoring


def reference_attention(query: Heads, key: Heads, value: Heads, mask: AttentionMask, scoring: Scoring) -> Heads:
    """Attention written as its formula: softmax(scale Q K^T + bias) V over the keys each query sees.

    Each group of heads / kv_heads queries shares a key-value head. A query that sees nothing gets zeros.
    """
    return _formula(query, key, value, tables_of(mask, query, key), scoring, 0)


def dense_mask(mask: AttentionMask, batch: int, queries: int, keys: int) -> Bool[Tensor, "rows queries keys"]:
    """True where a query sees a key; rows is the batch, or 1 where all rows have the same mask."""
    intervals = mask.intervals_of_rows(queries, keys, 1 if mask.uniform else batch)
    starts, ends = (each[..., None] for each in intervals)
    position = torch.arange(keys)
    return (starts <= position) & (position < ends)
