"""Causal attention as batched matrix products over blocks of queries, with its own backward.

A block of 128 queries is multiplied only with the keys it can see: half the products and half the softmax of the full
square. Documents narrow the keys further: a block begins at the document of its first query (rounded down, so that
few different shapes occur and their compiled products are reused), and the softmax hides what lies before each
query's own document. Scores have the dtype of the input; softmax computes in float32.

Saved for backward are query, key, value, and the probabilities; where those are large (long rows), they are computed
again, block by block, so that memory grows with the length of a row and not with its square.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from hornbook.model.cpu.softmax import softmax_, softmax_backward_
from hornbook.model.position import Lengths

QUERIES = 128
"""Queries per block."""
KEY_STEP = 64
"""A block's first key is a multiple of this."""
KEPT = 16
"""Probabilities are kept for backward if they are at most so many times as large as the queries."""


@dataclass(frozen=True)
class Block:
    """Queries [first, last) of some rows of the batch, and the keys [begin, end) that any of them sees."""

    rows: slice
    first: int
    last: int
    begin: int
    end: int
    starts: Tensor
    """[queries] int64: first key each query sees, counted from `begin`."""
    ends: Tensor
    """[queries] int64: one behind the last key each query sees, counted from `begin`."""


@lru_cache(maxsize=8)
def plan(queries: int, keys: int, batch: int, lengths: tuple[tuple[int, ...], ...] | None) -> list[Block]:
    """Blocks that cover all queries; the last query sees the last key. All layers of a forward share one plan."""
    groups = [(slice(0, batch), None)] if lengths is None else [(slice(i, i + 1), row) for i, row in enumerate(lengths)]
    offset, blocks = keys - queries, []
    for rows, row in groups:
        document = torch.zeros(queries, dtype=torch.int64) if row is None else _document_starts(row)
        for first in range(0, queries, QUERIES):
            last = min(first + QUERIES, queries)
            begin = int(document[first]) // KEY_STEP * KEY_STEP
            ends = torch.arange(first + offset + 1, last + offset + 1) - begin
            blocks.append(Block(rows, first, last, begin, last + offset, document[first:last] - begin, ends))
    return blocks


def _document_starts(row: tuple[int, ...]) -> Tensor:
    """For each position of a row, where its document begins."""
    lengths = torch.tensor(row)
    return (lengths.cumsum(0) - lengths).repeat_interleave(lengths)


class BlockAttention(torch.autograd.Function):
    """Query [batch, heads, queries, dim]; key and value [batch, kv_heads, keys, dim] -> [batch, heads, queries, dim].

    `grad` says whether backward may follow. The result lies [batch, queries, heads, dim] in memory, as the output
    projection reads it.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, lengths: Lengths | None, grad: bool) -> Tensor:
        batch, heads, queries, dim = query.shape
        blocks = plan(queries, key.shape[2], batch, None if lengths is None else tuple(lengths))
        out = query.new_empty(batch, queries, heads, dim).transpose(1, 2)
        keep = grad and queries * key.shape[2] * heads * batch <= 2 * KEPT * query.numel()
        kept = []
        for block in blocks:
            q, k, v = _parts(block, query, key, value)
            probabilities = _probabilities(q, k, block)
            out[block.rows, :, block.first : block.last] = _ungroup(probabilities @ v, out, block)
            if keep:
                kept.append(probabilities)
        ctx.blocks = blocks
        ctx.save_for_backward(query, key, value, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        query, key, value, *kept = ctx.saved_tensors
        d_query, d_key, d_value = torch.empty_like(query), torch.zeros_like(key), torch.zeros_like(value)
        for i, block in enumerate(ctx.blocks):
            q, k, v = _parts(block, query, key, value)
            d_out = _group(grads[0], block, key.shape[1])
            probabilities = kept[i] if kept else _probabilities(q, k, block)
            d_scores = d_out @ v.transpose(1, 2)
            softmax_backward_(d_scores, probabilities, *_tiled(block, q), _scale(q))
            d_query[block.rows, :, block.first : block.last] = _ungroup(d_scores @ k, query, block)
            _keys_of(d_key, block).add_(_unflatten(d_scores.transpose(1, 2) @ q, d_key))
            _keys_of(d_value, block).add_(_unflatten(probabilities.transpose(1, 2) @ d_out, d_value))
        return d_query, d_key, d_value, None, None


def _parts(block: Block, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The block's queries [rows kv_heads, groups queries, dim], keys and values [rows kv_heads, keys, dim]."""
    q = _group(query, block, key.shape[1])
    return q, _keys_of(key, block).flatten(0, 1), _keys_of(value, block).flatten(0, 1)


def _group(x: Tensor, block: Block, kv_heads: int) -> Tensor:
    """[batch, heads, time, dim] -> the block's [rows kv_heads, (heads / kv_heads) queries, dim]."""
    part = x[block.rows, :, block.first : block.last]
    return part.reshape(part.shape[0] * kv_heads, -1, part.shape[3])


def _ungroup(x: Tensor, like: Tensor, block: Block) -> Tensor:
    """The inverse of `_group`: [rows, heads, queries, dim]."""
    return x.view(-1, like.shape[1], block.last - block.first, like.shape[3])


def _keys_of(x: Tensor, block: Block) -> Tensor:
    return x[block.rows, :, block.begin : block.end]


def _unflatten(x: Tensor, like: Tensor) -> Tensor:
    return x.view(-1, like.shape[1], *x.shape[1:])


def _scale(q: Tensor) -> float:
    return q.shape[-1] ** -0.5


def _tiled(block: Block, q: Tensor) -> tuple[Tensor, Tensor]:
    """Starts and ends for each row of q, which repeats the block's queries for each head of a group."""
    groups = q.shape[1] // len(block.starts)
    return (block.starts, block.ends) if groups == 1 else (block.starts.repeat(groups), block.ends.repeat(groups))


def _probabilities(q: Tensor, k: Tensor, block: Block) -> Tensor:
    """Probabilities [rows kv_heads, groups queries, keys] of a block."""
    scores = q @ k.transpose(1, 2)
    softmax_(scores, *_tiled(block, q), _scale(q))
    return scores
