"""Attention of rows that are divided over ranks: keys and values travel in a ring (Liu et al. 2023, arXiv 2310.01889).

Each rank holds the queries, keys and values of its part of every row. In as many rounds as there are ranks it sees the
keys and values of each, one rank's at a time, and adds what they give to a running softmax (Milakov and Gimelshein
2018, arXiv 1805.02867): per query the largest score m, the sum l of exp(score - m), and the sum o of exp(score - m) V:

    m' = max(m, scores),   l' = l exp(m - m') + sum exp(scores - m'),   o' = o exp(m - m') + exp(scores - m') V

The result is o / l, and m + log l, the log of the sum of exponentials, is all that backward needs of the scores: it
makes them again tile by tile while keys and values travel once more, followed by their gradients, which are home after
the last round. What is held grows with the rank's share of a row, never with the row or its square.

With P the probabilities, Z dropout's factors and g the gradient of the result, the sum over keys of P Z (g V) is g
times the result, so the softmax's backward needs no second pass over the ring: dS = P (Z (g V) - sum(g result)).
"""

import math
from typing import Any, Unpack

import torch
from torch import Tensor

from hornbook.model.attention.attend import attend
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.attention.tiled_attention import Scoring, ScoringOptions, scoring_of
from hornbook.model.cpu.softmax import diagonal_sums
from hornbook.model.layers.dropout import AttentionDropout
from hornbook.model.layers.products import matmul
from hornbook.parallel.axes.context.part_exchange import Passing, Ring
from hornbook.parallel.axes.context.ring_plan import Tile, plan_tiles


class RingAttention:
    """In place of `attend` where `AttentionMask.part` says which part of each row is here; exact for every mask."""

    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, **options: Unpack[ScoringOptions]
    ) -> Tensor:
        """query [batch, heads, part, dim], key [batch, kv_heads, part, dim], value [batch, kv_heads, part, value_dim]
        -> [batch, heads, part, value_dim]."""
        if mask.part is None:  # whole rows: samples
            return attend(query, key, value, mask, **options)
        scoring = scoring_of(query, options)
        rest = scoring._replace(bias=None, sinks=None)
        return RingFunction.apply(query, key, value, scoring.bias, scoring.sinks, mask, rest, self._ring)


class RingFunction(torch.autograd.Function):
    """query, key, value, then the tensors of `Scoring`, the mask, the rest of `Scoring`, and the ring."""

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
        ring: Ring,
    ) -> Tensor:
        plan, scoring = plan_tiles(mask, len(query), query.device), scoring._replace(bias=bias)
        running = _Softmax(query, value)
        for source, (k, v) in ring.rounds([key, value]):
            for tile in plan[source]:
                running.add(tile, _scores(query, k, tile, scoring), v, scoring.dropout)
        out, log_sum = running.result(sinks)
        ctx.plan, ctx.scoring, ctx.ring = plan, scoring._replace(bias=None), ring
        ctx.save_for_backward(query, key, value, bias, sinks, out, log_sum)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        query, key, value, bias, sinks, out, log_sum = ctx.saved_tensors
        gradient = _Gradient(query, bias, grads[0], out, log_sum, ctx.scoring._replace(bias=bias))
        passing: Passing | None = None
        for source, (k, v) in ctx.ring.rounds([key, value]):
            d_key, d_value = gradient.of_keys(k, v, ctx.plan[source])
            if passing is not None:  # what the ranks before found for the same keys
                for mine, others in zip((d_key, d_value), passing.wait(), strict=True):
                    mine.add_(others)
            passing = ctx.ring.start([d_key, d_value], 1)
        assert passing is not None
        d_key, d_value = (each.to(key.dtype) for each in passing.wait())
        # A sink's value is 0, so its gradient is minus its probability times the mean of the others' (which is out).
        d_sinks = None
        if sinks is not None:
            share = (sinks[:, None] - log_sum).exp()
            d_sinks = -(share * gradient.inner).sum((0, 2)).to(sinks.dtype)
        d_bias = None if gradient.d_bias is None or bias is None else gradient.d_bias.to(bias.dtype)
        return gradient.d_query.to(query.dtype), d_key, d_value, d_bias, d_sinks, None, None, None


class _Softmax:
    """m, l and o of all queries of this rank, in float32 at least."""

    def __init__(self, query: Tensor, value: Tensor) -> None:
        batch, heads, time, _ = query.shape
        wide = torch.promote_types(query.dtype, torch.float32)
        self._dtype = query.dtype
        self._top = query.new_full((batch, heads, time), -math.inf, dtype=wide)
        self._sum = query.new_zeros((batch, heads, time), dtype=wide)
        self._out = query.new_zeros((batch, time, heads, value.shape[-1]), dtype=wide).transpose(1, 2)

    def add(self, tile: Tile, scores: Tensor, value: Tensor, dropout: AttentionDropout | None) -> None:
        """What the queries of a tile find among its keys; scores [batch, heads, queries, keys]."""
        here = (slice(None), slice(None), tile.queries)
        before = self._top[here]
        top = torch.maximum(before, scores.amax(-1))
        # A query that has seen nothing yet: exp(-inf - 0) is 0, where exp(-inf + inf) would not be a number.
        finite = top.masked_fill(top == -math.inf, 0.0)
        exponentials = scores.sub_(finite[..., None]).exp_()
        shrink = (before - finite).exp()
        self._sum[here] = self._sum[here] * shrink + exponentials.sum(-1)
        found = _times_values(_dropped(exponentials, tile, dropout).to(self._dtype), value, tile)
        self._out[here] = self._out[here] * shrink[..., None] + found
        self._top[here] = top

    def result(self, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
        """The weighted means of values, and the log of the sums of exponentials; 0 and 0 where nothing was seen."""
        log_sum = self._top + self._sum.log()
        if sinks is not None:
            log_sum = torch.logaddexp(log_sum, sinks[:, None].to(log_sum.dtype))
        log_sum = log_sum.masked_fill(self._sum == 0, 0.0)
        share = (self._top - log_sum).exp()[..., None]
        return (self._out * share).to(self._dtype), log_sum


class _Gradient:
    """Gradients of this rank's queries, and of keys and values as they come by."""

    def __init__(
        self, query: Tensor, bias: Tensor | None, grad: Tensor, out: Tensor, log_sum: Tensor, scoring: Scoring
    ) -> None:
        self._query, self._grad, self._log_sum, self._scoring = query, grad, log_sum, scoring
        self.inner = (grad.to(log_sum.dtype) * out).sum(-1)
        """[batch, heads, time]: the gradient of the result times the result."""
        self.d_query = torch.zeros_like(query, dtype=log_sum.dtype)
        self.d_bias = None if bias is None or not bias.requires_grad else torch.zeros_like(bias, dtype=log_sum.dtype)

    def of_keys(self, key: Tensor, value: Tensor, tiles: list[Tile]) -> tuple[Tensor, Tensor]:
        """Gradients of one rank's keys and values by the queries of this one."""
        wide = self._log_sum.dtype
        d_key, d_value = (torch.zeros_like(x, dtype=wide) for x in (key, value))
        for tile in tiles:
            self._add(tile, key, value, d_key, d_value)
        return d_key, d_value

    def _add(self, tile: Tile, key: Tensor, value: Tensor, d_key: Tensor, d_value: Tensor) -> None:
        here, dtype, dropout = (slice(None), slice(None), tile.queries), key.dtype, self._scoring.dropout
        scores = _scores(self._query, key, tile, self._scoring)
        capped = scores.clone() if self._scoring.softcap is not None else None
        probabilities = scores.sub_(self._log_sum[here][..., None]).exp_()
        grad, kv_heads = _grouped(self._grad[here], key.shape[1]), key.shape[1]
        d_scores = matmul(grad, _keys(value, tile).transpose(1, 2)).view(probabilities.shape).to(probabilities.dtype)
        d_scores = _dropped(d_scores, tile, dropout).sub_(self.inner[here][..., None]).mul_(probabilities)
        dropped = _grouped(_dropped(probabilities, tile, dropout).to(dtype), kv_heads)
        _add_to(d_value, tile, dropped, grad)
        if self.d_bias is not None:
            queries, keys = tile.positions
            sums = diagonal_sums(d_scores).sum(0)
            begin = self.d_bias.shape[1] // 2 + keys.start - queries.stop + 1
            self.d_bias[:, begin : begin + sums.shape[1]] += sums
        if capped is not None:
            d_scores.mul_(self._slopes(capped, tile))
        d_scores = _grouped(d_scores.mul_(self._scoring.scale).to(dtype), kv_heads)
        found = matmul(d_scores, _keys(key, tile))
        self.d_query[here] += found.view(self.d_query[here].shape)
        _add_to(d_key, tile, d_scores, _grouped(self._query[here], kv_heads))

    def _slopes(self, scores: Tensor, tile: Tile) -> Tensor:
        """Derivative of the soft cap, from its result plus the scores by distance."""
        cap, bias = self._scoring.softcap, self._scoring.bias
        assert cap is not None
        if bias is not None:
            scores = scores - _by_distance(bias, tile)
        hidden = tile.hidden()
        return 1 - (scores if hidden is None else scores.masked_fill(hidden, 0.0)).div(cap).square()


def _scores(query: Tensor, key: Tensor, tile: Tile, scoring: Scoring) -> Tensor:
    """[batch, heads, queries, keys] of a tile, float32 at least; -inf where a query does not see a key."""
    q, k = _grouped(query[:, :, tile.queries], key.shape[1]), _keys(key, tile)
    products = matmul(q, k.transpose(1, 2))
    wide = products.to(torch.promote_types(products.dtype, torch.float32))
    scores = wide.view(len(query), query.shape[1], -1, k.shape[1]).mul_(scoring.scale)
    if scoring.softcap is not None:
        scores = scores.div_(scoring.softcap).tanh_().mul_(scoring.softcap)
    if scoring.bias is not None:
        scores = scores + _by_distance(scoring.bias, tile)
    hidden = tile.hidden()
    return scores if hidden is None else scores.masked_fill_(hidden, -math.inf)


def _by_distance(bias: Tensor, tile: Tile) -> Tensor:
    """[heads, queries, keys]: the table's score of each pair."""
    queries, keys = tile.positions
    query = torch.arange(queries.start, queries.stop, device=bias.device)
    key = torch.arange(keys.start, keys.stop, device=bias.device)
    return bias[:, key - query[:, None] + bias.shape[1] // 2]


def _times_values(probabilities: Tensor, value: Tensor, tile: Tile) -> Tensor:
    """[batch, heads, queries, keys] times the values of a tile's keys."""
    batch, heads, queries, _ = probabilities.shape
    found = matmul(_grouped(probabilities, value.shape[1]), _keys(value, tile))
    return found.view(batch, heads, queries, -1)


def _dropped(x: Tensor, tile: Tile, dropout: AttentionDropout | None) -> Tensor:
    """Some values zero and the rest scaled, keyed by row, head and positions; what is given stays."""
    return x if dropout is None else dropout(x, slice(None), *tile.positions)


def _grouped(x: Tensor, kv_heads: int) -> Tensor:
    """[batch, heads, queries, ...] -> [batch kv_heads, (heads / kv_heads) queries, ...]."""
    return x.reshape(len(x) * kv_heads, -1, x.shape[-1])


def _keys(x: Tensor, tile: Tile) -> Tensor:
    """[batch kv_heads, keys, dim] of a tile."""
    return x[:, :, tile.keys].flatten(0, 1)


def _add_to(sums: Tensor, tile: Tile, weights: Tensor, x: Tensor) -> None:
    """Add weights^T x to the keys of a tile; weights [batch kv_heads, queries, keys]."""
    part = sums[:, :, tile.keys]
    part += matmul(weights.transpose(1, 2), x).view(part.shape)
