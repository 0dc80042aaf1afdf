"""Exact softmax attention over heads: the slow reference, and the choice of the fastest way for shape and device."""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from hornbook.model.position import Lengths

Heads = Float[Tensor, "batch heads time dim"]


def reference_attention(query: Heads, key: Heads, value: Heads, lengths: Lengths | None = None) -> Heads:
    """Causal attention written as its formula, softmax(Q K^T / sqrt(d)) V, confined to documents.

    Queries are the last `time` of the keys' positions; each group of heads / kv_heads queries shares a key-value head.
    """
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    new, total = query.shape[2], key.shape[2]
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
    allowed = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
    if lengths is not None:
        allowed = allowed & document_mask(lengths, query.device)[:, None]
    return scores.masked_fill(~allowed, -math.inf).softmax(-1) @ value


def document_mask(lengths: Lengths, device: torch.device) -> Tensor:
    """[batch, time, time]: True where both positions lie in the same document."""
    rows = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in lengths]
    documents = torch.stack(rows).to(device)
    return documents[:, :, None] == documents[:, None, :]


def attend(query: Heads, key: Heads, value: Heads, lengths: Lengths | None = None) -> Heads:
    """Causal attention; shapes as `reference_attention`."""
    if lengths is not None and any(len(row) > 1 for row in lengths):
        return _by_document(query, key, value, lengths)
    new, total = query.shape[2], key.shape[2]
    gqa = query.shape[1] != key.shape[1]
    if new == total:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=gqa)
    mask = None
    if new > 1:
        mask = torch.ones(new, total, dtype=torch.bool, device=query.device).tril(total - new)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=gqa)


def _by_document(query: Heads, key: Heads, value: Heads, lengths: Lengths) -> Heads:
    rows = []
    for i, row in enumerate(lengths):
        parts = [part[i : i + 1].split(row, dim=2) for part in (query, key, value)]
        gqa = query.shape[1] != key.shape[1]
        done = [
            F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=gqa)
            for q, k, v in zip(*parts, strict=True)
        ]
        rows.append(torch.cat(done, dim=2))
    return torch.cat(rows)
