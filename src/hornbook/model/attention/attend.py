"""Exact softmax attention over heads: the slow reference, and the choice of the fastest way for device and mask.

| where | mask and scores | way |
|---|---|---|
| CPU, with gradients or many queries | any | tiles of queries against the keys they see (`tiled_attention.py`) |
| anywhere | every query sees all keys, or those up to its own; plain scores | torch's scaled_dot_product_attention |
| GPU, bf16 or fp16 | documents and windows; plain scores | flash attention over documents behind one another |
| GPU | prefixes, soft caps, scores by distance, sinks | FlexAttention, which skips blocks that nothing sees |
| CPU, without gradients | a few new queries on a cache; plain scores | each query with its own keys (`cached.py`) |
| anywhere | a few new queries on a cache; compiled blocks on a CPU | the same with a mask of all pairs |
| anywhere | dropout of probabilities, and whatever is left | the formula, in chunks of queries |

No way makes more than `MOST_PAIRS` scores at once, but kernels that keep none of them. docs/speed.md has the
measurements behind the first line.
"""

import functools
import math
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from hornbook.model.attention.device_attention import (
    HALVES,
    attend_by_blocks,
    attend_to_documents,
    takes_blocks,
    takes_documents,
)
from hornbook.model.attention.key_tables import KeyTables, key_tables
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.attention.tiled_attention import Scoring, ScoringOptions, TiledAttention, scoring_of
from hornbook.model.cpu.cached import attend_to_cached, takes
from hornbook.model.layers.products import is_widened, matmul
from hornbook.model.layers.saved_tensors import is_rebuilding

Heads = Float[Tensor, "batch heads time dim"]
Way = Literal["whole", "documents", "blocks", "masked", "formula"]
FEW_QUERIES = 16
"""Up to this number of queries a tile is not worth its preparation."""
MOST_PAIRS = 2**27
"""Scores that may exist at once, of all rows and heads: 512 MiB in float32."""


def attend(query: Heads, key: Heads, value: Heads, mask: AttentionMask, **options: Unpack[ScoringOptions]) -> Heads:
    """Compute attention by the fastest way."""
    scoring = scoring_of(query, options)
    if takes_tiles(query):
        rest = scoring._replace(bias=None, sinks=None)
        keep = torch.is_grad_enabled() and not is_rebuilding()
        return TiledAttention.apply(query, key, value, scoring.bias, scoring.sinks, mask, rest, keep)
    tables = tables_of(mask, query, key)
    way = choose_way(query, key, value, tables, scoring)
    if way == "documents":
        assert tables.documents is not None
        return attend_to_documents(query, key, value, tables.documents, scoring.scale)
    if way == "blocks":
        assert tables.blocks is not None
        return attend_by_blocks(query, key, value, tables.blocks, scoring)
    if way == "formula":
        return attend_by_formula(query, key, value, tables, scoring)
    if scoring.bias is None and takes(query, key, value):
        return attend_to_cached(query, key, value, tables.starts, tables.ends, scoring.scale)
    seen = None if way == "whole" else _seen(query, key, tables, scoring.bias)
    return _attend_by_torch(query, key, value, seen, tables.is_causal and way == "whole", scoring.scale)


def takes_tiles(query: Heads) -> bool:
    """Whether these are queries for `TiledAttention`, which is written for a CPU and is not compiled."""
    plain = type(query) is Tensor and query.device.type == "cpu" and not torch.compiler.is_compiling()
    return plain and query.shape[2] > FEW_QUERIES


def choose_way(query: Heads, key: Heads, value: Heads, tables: KeyTables, scoring: Scoring) -> Way:
    """The way of the table above, from the second line on."""
    _, softcap, bias, sinks, dropout = scoring
    smooth = softcap is None and sinks is None and dropout is None
    if smooth and bias is None and tables.is_whole:
        return "whole"
    many = query.shape[2] > FEW_QUERIES and dropout is None
    if many and smooth and bias is None and tables.documents is not None and takes_documents(query, key, value):
        return "documents"
    if many and tables.blocks is not None and takes_blocks(query, key, value):
        return "blocks"
    scores = query.shape[0] * query.shape[2] * key.shape[2] * (1 if bias is None else query.shape[1])
    return "masked" if smooth and scores <= MOST_PAIRS else "formula"


def attend_by_formula(query: Heads, key: Heads, value: Heads, tables: KeyTables, scoring: Scoring) -> Heads:
    """The formula, for as many queries at a time as `MOST_PAIRS` allows; backward makes a chunk's scores again."""
    queries = query.shape[2]
    chunk = max(MOST_PAIRS // (query.shape[0] * query.shape[1] * key.shape[2]), 1)
    if queries <= chunk:
        return _formula(query, key, value, tables, scoring, 0)
    again = functools.partial(checkpoint, _formula, use_reentrant=False, preserve_rng_state=False)
    firsts = range(0, queries, chunk)
    parts = [again(query[:, :, first : first + chunk], key, value, tables, scoring, first) for first in firsts]
    return torch.cat(parts, 2)


def _formula(query: Heads, key: Heads, value: Heads, tables: KeyTables, scoring: Scoring, first: int) -> Heads:
    """What queries number `first` and after it find."""
    scale, softcap, bias, sinks, dropout = scoring
    groups, keys = query.shape[1] // key.shape[1], key.shape[2]
    here = slice(first, first + query.shape[2])
    positions = range(keys - tables.starts.shape[1], keys)[here]
    among = positions if tables.positions is None else tables.positions[:, here]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = matmul(query, key.transpose(-1, -2)) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + spread(bias, among, keys)
    allowed = dense(tables, here, keys)
    scores = scores.masked_fill(~allowed, -math.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks[:, None, None].expand(*scores.shape[:-1], 1)], -1)
    probabilities = torch.where(allowed, scores.softmax(-1)[..., :keys], 0.0).to(query.dtype)
    if dropout is not None:
        keep = dropout.keep(slice(None), query.shape[1], positions, range(keys))
        probabilities = probabilities * keep / (1 - dropout.rate)
    return matmul(probabilities, value)


def spread(
    bias: Float[Tensor, "heads distances"], positions: range | Tensor, keys: int
) -> Float[Tensor, "*rows heads queries keys"]:
    """The table's score of each pair; queries stand at `positions` among the keys, in all rows or [rows, queries]."""
    key, middle = torch.arange(keys, device=bias.device), bias.shape[1] // 2
    if isinstance(positions, Tensor):  # columns behind the longest text have no score, and nobody sees them
        distance = key - positions[..., None] + middle
        return bias[:, distance.clamp(0, bias.shape[1] - 1)].transpose(0, 1)
    query = torch.arange(positions.start, positions.stop, device=bias.device)
    return bias[:, key - query[:, None] + middle]


def dense(tables: KeyTables, queries: slice, keys: int) -> Tensor:
    """bool [rows, 1, queries, keys]: True where a query sees a key."""
    key = torch.arange(keys, device=tables.starts.device)
    starts, ends = (each[:, None, queries, None] for each in (tables.starts, tables.ends))
    return (starts <= key) & (key < ends)


def tables_of(mask: AttentionMask, query: Heads, key: Heads) -> KeyTables:
    """Those that come with the mask, made once for all layers; or, of a mask alone, those of these shapes."""
    if mask.tables is not None:
        return mask.tables[mask.window]
    return key_tables(mask, query.shape[0], query.shape[2], key.shape[2], query.device)


def _seen(query: Heads, key: Heads, tables: KeyTables, bias: Tensor | None) -> Tensor | None:
    """torch's mask: pairs that see each other, with their scores by distance where there are any."""
    queries, keys = query.shape[2], key.shape[2]
    seen = dense(tables, slice(0, queries), keys)
    if bias is None:
        return seen
    positions = range(keys - queries, keys) if tables.positions is None else tables.positions
    return spread(bias, positions, keys).masked_fill(~seen, -math.inf)


def spreads_groups(query: Heads, key: Heads, seen: Tensor | None) -> bool:
    """Whether grouped heads must be repeated before torch's attention.

    On a GPU only flash attention takes groups: in half precision and without a mask. Everything else would fall back
    to the formula, which makes all scores (8.6 GB a layer for 4 rows of 4096 tokens and 32 heads in float32).
    """
    plain = seen is None and query.dtype in HALVES
    return query.device.type == "cuda" and query.shape[1] != key.shape[1] and not plain


def _attend_by_torch(query: Heads, key: Heads, value: Heads, seen: Tensor | None, causal: bool, scale: float) -> Heads:
    dtype = torch.float32 if is_widened(query) else query.dtype
    if spreads_groups(query, key, seen):
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    return F.scaled_dot_product_attention(
        query.to(dtype),
        key.to(dtype),
        value.to(dtype),
        attn_mask=seen if seen is None or seen.dtype == torch.bool else seen.to(dtype),
        is_causal=causal,
        scale=scale,
        enable_gqa=query.shape[1] != key.shape[1],
    ).to(query.dtype)
