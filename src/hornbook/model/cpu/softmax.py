"""Softmax of a tile of scores over the keys each query sees, and its gradient, in place.

A tile is scores [rows, heads, queries, keys]: query i of row r sees keys starts[r, i] .. ends[r, i] - 1, counted from
the block's first key; the rest become exact zeros. P = softmax(scale * S + B), and with D = sum_j P dP:
dS = scale * P (dP - D). The bias B depends on head and distance alone, so it is read from a table and its gradient is
sums along diagonals of dS / scale.
"""

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from hornbook.kernels.scalar import OPTIONS, exponential, f32, i64, largest, load, store, total
from hornbook.kernels.team import Kernel, float_argument, is_bf16, launch, supports


def softmax_(scores: Tensor, starts: Tensor, ends: Tensor, scale: float) -> None:
    """Scores [rows, heads, queries, keys] become probabilities; starts, ends [rows or 1, queries] (int64)."""
    if supports(scores):
        launch(_softmax_kernel, _rows(scores), *_shape(scores, starts), scale, scores, starts, ends)
        return
    hidden = _hidden(scores, starts, ends)
    scores.copy_((scores * scale).masked_fill(hidden, -math.inf).softmax(-1).masked_fill(hidden, 0))


def biased_softmax_(
    scores: Tensor, starts: Tensor, ends: Tensor, scale: float, table: Tensor, column: int, sinks: Tensor | None
) -> Tensor:
    """As `softmax_`, with scores by distance, and a score per head that has no key: gives that one's probability.

    table: [heads, distances], of which `column` is for the first query and the first key; a later key is a later
    column, a later query an earlier one. sinks: [heads]. Gives [rows, heads, queries].
    """
    rows, heads, queries, keys = scores.shape
    sinks = table.new_full((heads,), -math.inf) if sinks is None else sinks
    if supports(scores):
        rest = torch.empty(rows, heads, queries)
        given = (table.float().contiguous(), sinks.float().contiguous())
        shape = (*_shape(scores, starts), heads, table.shape[1], column, scale)
        launch(_biased_kernel, _rows(scores), *shape, scores, starts, ends, *given, rest)
        return rest
    apart = torch.arange(keys, device=scores.device) - torch.arange(queries, device=scores.device)[:, None]
    hidden = _hidden(scores, starts, ends)
    full = (scores * scale + table[:, apart + column]).masked_fill(hidden, -math.inf)
    full = torch.cat([full, sinks[:, None, None].expand(rows, heads, queries, 1)], -1).softmax(-1)
    scores.copy_(full[..., :keys].masked_fill(hidden, 0))
    return full[..., keys]


def softmax_backward_(grads: Tensor, probabilities: Tensor, starts: Tensor, ends: Tensor, scale: float) -> None:
    """Gradients of the probabilities become gradients of the scores; shapes as of `softmax_`."""
    if supports(grads, probabilities):
        shape = (*_shape(grads, starts), scale)
        launch(_backward_kernel, _rows(grads), *shape, grads, probabilities, starts, ends)
        return
    inner = (grads * probabilities).sum(-1, keepdim=True)
    grads.sub_(inner).mul_(probabilities).mul_(scale)


def diagonal_sums(grads: Tensor) -> Tensor:
    """Sums of [rows, heads, queries, keys] over equal distance -> [rows, heads, queries + keys - 1], float32 at least.

    Entry d is that of key minus query equal to d - (queries - 1).
    """
    rows, heads, queries, keys = grads.shape
    if supports(grads):
        sums = torch.zeros(rows, heads, queries + keys - 1)
        launch(_diagonal_kernel, rows * heads, is_bf16(grads), queries, keys, grads, sums)
        return sums
    apart = torch.arange(keys, device=grads.device) - torch.arange(queries, device=grads.device)[:, None] + queries - 1
    sums = grads.new_zeros(rows, heads, queries + keys - 1)
    return sums.index_add_(2, apart.flatten(), grads.flatten(2))


def _rows(scores: Tensor) -> int:
    rows, heads, queries, _ = scores.shape
    return rows * heads * queries


def _shape(scores: Tensor, starts: Tensor) -> tuple[int, int, int, int, int]:
    """Dtype, queries, keys, and by which rows of scores intervals change: after `group` rows by `step` intervals."""
    _, heads, queries, keys = scores.shape
    return is_bf16(scores), queries, keys, heads * queries, 0 if starts.shape[0] == 1 else queries


def _hidden(scores: Tensor, starts: Tensor, ends: Tensor) -> Tensor:
    position = torch.arange(scores.shape[-1], device=scores.device)
    return ((position < starts[..., None]) | (position >= ends[..., None]))[:, None]


@njit(inline="always", **OPTIONS)
def _clear(row, start, end):
    """Zeros where nothing is seen."""
    for j in range(start):
        row[j] = 0
    for j in range(end, row.size):
        row[j] = 0


@Kernel
def _softmax_kernel(first, last, _chunk, a, values):
    queries, keys, group, step, scale = a[1], a[2], a[3], a[4], float_argument(a, 5)
    scores, starts, ends = values(a[6]), i64(a[7]), i64(a[8])
    exponentials = np.empty(keys, np.float32)
    for row in range(first, last):
        query = row // group * step + row % queries
        start, end = starts[query], ends[query]
        base = row * keys
        whole = scores[base : base + keys]
        seen = scores[base + start : base + end]
        count = end - start
        # exp((s - top) scale) is at most 1 since scale > 0, and the row of scratch lets the sum be a loop of its own.
        top = largest(seen, count)
        for j in range(count):
            exponentials[j] = exponential((load(seen, j) - top) * scale)
        inverse = np.float32(1) / total(exponentials, count)
        for j in range(count):
            store(seen, j, exponentials[j] * inverse)
        _clear(whole, start, end)


@Kernel
def _biased_kernel(first, last, _chunk, a, values):
    queries, keys, group, step, heads, width, column = a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    scale, scores, starts, ends = float_argument(a, 8), values(a[9]), i64(a[10]), i64(a[11])
    table, sinks, rest = f32(a[12]), f32(a[13]), f32(a[14])
    exponentials = np.empty(keys, np.float32)
    for row in range(first, last):
        query, head = row // group * step + row % queries, row // queries % heads
        start, end = starts[query], ends[query]
        # The table's row for this head, at the distance of this query from the first key: one column less per query.
        base, away = row * keys, head * width + column - row % queries
        whole = scores[base : base + keys]
        seen, bias = scores[base + start : base + end], table[away + start : away + end]
        count = end - start
        for j in range(count):
            exponentials[j] = load(seen, j) * scale + bias[j]
        top = max(sinks[head], largest(exponentials, count))
        for j in range(count):
            exponentials[j] = exponential(exponentials[j] - top)
        beside = exponential(sinks[head] - top)
        inverse = np.float32(1) / (total(exponentials, count) + beside)
        for j in range(count):
            store(seen, j, exponentials[j] * inverse)
        _clear(whole, start, end)
        rest[row] = beside * inverse


@Kernel
def _backward_kernel(first, last, _chunk, a, values):
    queries, keys, group, step, scale = a[1], a[2], a[3], a[4], float_argument(a, 5)
    grads, probabilities, starts, ends = values(a[6]), values(a[7]), i64(a[8]), i64(a[9])
    for row in range(first, last):
        query = row // group * step + row % queries
        start, end = starts[query], ends[query]
        base = row * keys
        whole = grads[base : base + keys]
        d, p = grads[base + start : base + end], probabilities[base + start : base + end]
        inner = np.float32(0)
        for j in range(end - start):
            inner += load(d, j) * load(p, j)
        for j in range(end - start):
            store(d, j, (load(d, j) - inner) * load(p, j) * scale)
        _clear(whole, start, end)


@Kernel
def _diagonal_kernel(first, last, _chunk, a, values):
    queries, keys, grads, sums = a[1], a[2], values(a[3]), f32(a[4])
    for matrix in range(first, last):
        for i in range(queries):
            # Key j minus query i is distance j - i, which stands in column j - i + queries - 1.
            begin = matrix * (queries + keys - 1) + queries - 1 - i
            target = sums[begin : begin + keys]
            source = grads[(matrix * queries + i) * keys : (matrix * queries + i + 1) * keys]
            for j in range(keys):
                target[j] += load(source, j)


# ---- Cross-entropy of a chunk of logits, and its gradient in the same place
# loss = weight * (logsumexp(z) - z[target]); d z = weight * (softmax(z) - onehot(target)). Each exponential is computed
# once, into a row of float32 that stays in cache.


def cross_entropy_(logits: Tensor, targets: Tensor, weights: Tensor, losses: Tensor, want_grad: bool) -> None:
    """Fill losses [rows] (float32, weighted); logits [rows, vocab] become their gradients if wanted."""
    rows, vocab = logits.shape
    launch(_cross_entropy_kernel, rows, is_bf16(logits), vocab, int(want_grad), logits, targets, weights, losses)


@Kernel
def _cross_entropy_kernel(first, last, _chunk, a, values):
    vocab, want_grad, logits, targets, weights, losses = a[1], a[2], values(a[3]), i64(a[4]), f32(a[5]), f32(a[6])
    exponentials = np.empty(vocab, np.float32)
    for row in range(first, last):
        z = logits[row * vocab : (row + 1) * vocab]
        weight, target = weights[row], targets[row]
        top = largest(z, vocab)
        for j in range(vocab):
            exponentials[j] = exponential(load(z, j) - top)
        normalizer = total(exponentials, vocab)
        losses[row] = weight * (np.log(normalizer) + top - load(z, target))
        if want_grad:
            factor = weight / normalizer
            for j in range(vocab):
                store(z, j, exponentials[j] * factor)
            # Again from the float32 exponential: subtracting from the rounded value would round twice.
            store(z, target, exponentials[target] * factor - weight)
