"""Attention as batched matrix products over tiles of queries (`tiles.py`), with its own backward.

Scores have the dtype of the input; softmax computes in float32. Saved for backward are query, key, value, and the
probabilities; where those are large (long rows), they are computed again, tile by tile, so that memory grows with
the length of a row and not with its square.
"""

from typing import Any, NamedTuple, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from hornbook.model.attention.mask import AttentionMask
from hornbook.model.attention.tiles import QueryTile, plan_tiles
from hornbook.model.config.tiling import KEPT
from hornbook.model.cpu.softmax import biased_softmax_, diagonal_sums, softmax_, softmax_backward_
from hornbook.model.layers.dropout import AttentionDropout
from hornbook.model.layers.products import add_products_, matmul


class Scoring(NamedTuple):
    """What becomes of a product of query and key, and of the probability it gives."""

    scale: float
    softcap: float | None = None
    """Scores s become softcap * tanh(s / softcap), before `bias` is added."""
    bias: Float[Tensor, "heads distances"] | None = None
    """Scores by key position minus query position; distance 0 stands in the middle."""
    sinks: Float[Tensor, " heads"] | None = None
    """One more score per head, which takes part in the softmax and has no value."""
    dropout: AttentionDropout | None = None


class ScoringOptions(TypedDict, total=False):
    """Fields of `Scoring` as keywords of an attention function; `scale` is 1 / sqrt(dim) if not given or None."""

    scale: float | None
    softcap: float | None
    bias: Tensor | None
    sinks: Tensor | None
    dropout: AttentionDropout | None


def scoring_of(query: Tensor, options: ScoringOptions) -> Scoring:
    """Return the `Scoring` of queries [..., dim]."""
    scale = options.get("scale")
    fields: dict[str, Any] = {**options, "scale": query.shape[-1] ** -0.5 if scale is None else scale}
    return Scoring(**fields)


class TiledAttention(torch.autograd.Function):
    """Query [batch, heads, queries, dim]; key [batch, kv_heads, keys, dim]; value [batch, kv_heads, keys, value_dim];
    then `Scoring`'s fields, and whether probabilities may be kept for backward -> [batch, heads, queries, value_dim].

    The result lies [batch, queries, heads, value_dim] in memory, as the output projection reads it.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        sinks: Tensor | None,
        mask: AttentionMask,
        scoring: Scoring,
        may_keep: bool,
    ) -> Tensor:
        (batch, heads, queries, _), keys = query.shape, key.shape[2]
        whole = plan_tiles(queries, keys, batch, mask)
        out = query.new_empty(batch, queries, heads, value.shape[3]).transpose(1, 2)
        rest = None if sinks is None else sinks.new_empty(batch, heads, queries)
        scoring = scoring._replace(bias=bias, sinks=sinks)
        keep = may_keep and heads * whole.pairs <= KEPT * query.numel()
        kept = []
        for tile in whole.tiles:
            q, k, v = _parts(tile, query, key, value)
            probabilities = _probabilities(q, k, tile, scoring, rest)
            values = matmul(_dropped(probabilities, tile, scoring), v)
            out[tile.rows, :, tile.first : tile.last] = _shaped(values, tile)
            if keep:
                kept.append(probabilities)
        ctx.tiles, ctx.scoring = whole.tiles, scoring._replace(bias=None, sinks=None)
        ctx.save_for_backward(query, key, value, bias, sinks, rest, None if rest is None else out, *kept)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        query, key, value, bias, sinks, rest, out, *kept = ctx.saved_tensors
        scoring = ctx.scoring._replace(bias=bias, sinks=sinks)
        d_query, d_key, d_value = torch.empty_like(query), key.new_zeros(key.shape), value.new_zeros(value.shape)
        d_bias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        for i, tile in enumerate(ctx.tiles):
            q, k, v = _parts(tile, query, key, value)
            d_out = _group(grads[0], tile, key.shape[1])
            probabilities = kept[i] if kept else _probabilities(q, k, tile, scoring, None)
            d_scores = _dropped(matmul(d_out, v.transpose(1, 2)), tile, scoring)
            _to_scores_(d_scores, probabilities, (q, k), tile, scoring, d_bias)
            d_query[tile.rows, :, tile.first : tile.last] = _shaped(matmul(d_scores, k), tile)
            add_products_(_keys_of(d_key, tile), d_scores.transpose(1, 2), q)
            dropped = _dropped(probabilities, tile, scoring)
            add_products_(_keys_of(d_value, tile), dropped.transpose(1, 2), d_out)
        # The sink's value is 0, so its gradient is minus its probability times the mean of the others' (which is out).
        d_sinks = None if sinks is None else -(rest * (out * grads[0]).sum(-1)).sum((0, 2)).to(sinks.dtype)
        return d_query, d_key, d_value, d_bias, d_sinks, None, None, None


def _probabilities(q: Tensor, k: Tensor, tile: QueryTile, scoring: Scoring, rest: Tensor | None) -> Tensor:
    """Probabilities [rows kv_heads, groups queries, keys] of a tile; `rest` receives those of the sinks."""
    scores, scale = matmul(q, k.transpose(1, 2)), scoring.scale
    if scoring.softcap is not None:
        scores, scale = scores.mul_(scale / scoring.softcap).tanh_().mul_(scoring.softcap), 1.0
    shaped = _shaped(scores, tile)
    if scoring.bias is None and scoring.sinks is None:
        softmax_(shaped, tile.starts, tile.ends, scale)
        return scores
    table, column = _table(tile, scoring, shaped)
    left = biased_softmax_(shaped, tile.starts, tile.ends, scale, table, column, scoring.sinks)
    if rest is not None:
        rest[tile.rows, :, tile.first : tile.last] = left
    return scores


def _to_scores_(
    grads: Tensor,
    probabilities: Tensor,
    parts: tuple[Tensor, Tensor],
    tile: QueryTile,
    scoring: Scoring,
    d_bias: Tensor | None,
) -> None:
    """Gradients of probabilities become those of products of query and key; `d_bias` is added to."""
    shaped, scale = _shaped(grads, tile), scoring.scale if scoring.softcap is None else 1.0
    softmax_backward_(shaped, _shaped(probabilities, tile), tile.starts, tile.ends, scale)
    if d_bias is not None:
        sums = diagonal_sums(shaped).sum(0)
        begin = d_bias.shape[1] // 2 + tile.begin - tile.position - (tile.last - tile.first - 1)
        d_bias[:, begin : begin + sums.shape[1]].add_(sums, alpha=1 / scale)
    if scoring.softcap is not None:
        slopes = matmul(parts[0], parts[1].transpose(1, 2)).mul_(scoring.scale / scoring.softcap).tanh_()
        grads.mul_(slopes.square_().neg_().add_(1).mul_(scoring.scale))


def _table(tile: QueryTile, scoring: Scoring, scores: Tensor) -> tuple[Tensor, int]:
    """Scores by distance, and their column for the tile's first query and first key."""
    if scoring.bias is not None:
        return scoring.bias, scoring.bias.shape[1] // 2 + tile.begin - tile.position
    queries, keys = scores.shape[2:]
    wide = torch.promote_types(scores.dtype, torch.float32)
    return torch.zeros(scores.shape[1], queries + keys - 1, dtype=wide, device=scores.device), queries - 1


def _dropped(x: Tensor, tile: QueryTile, scoring: Scoring) -> Tensor:
    """Probabilities with some of them zero and the rest scaled; or gradients, likewise. What is given stays."""
    if scoring.dropout is None:
        return x
    queries = range(tile.position, tile.position + tile.last - tile.first)
    return scoring.dropout(_shaped(x, tile), tile.rows, queries, range(tile.begin, tile.end)).view_as(x)


def _shaped(x: Tensor, tile: QueryTile) -> Tensor:
    """[rows kv_heads, groups queries, ...] -> [rows, heads, queries, ...]: the inverse of `_group`."""
    rows, queries = tile.rows.stop - tile.rows.start, tile.last - tile.first
    return x.view(rows, -1, queries, x.shape[2])


def _parts(tile: QueryTile, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The tile's queries [rows kv_heads, groups queries, dim], keys and values [rows kv_heads, keys, dim]."""
    q = _group(query, tile, key.shape[1])
    return q, _keys_of(key, tile), _keys_of(value, tile)


def _group(x: Tensor, tile: QueryTile, kv_heads: int) -> Tensor:
    """[batch, heads, time, dim] -> the tile's [rows kv_heads, (heads / kv_heads) queries, dim]."""
    part = x[tile.rows, :, tile.first : tile.last]
    return part.reshape(part.shape[0] * kv_heads, -1, part.shape[3])


def _keys_of(x: Tensor, tile: QueryTile) -> Tensor:
    """[rows kv_heads, keys, dim] of a tile: of contiguous x a view."""
    return x[tile.rows, :, tile.begin : tile.end].flatten(0, 1)
