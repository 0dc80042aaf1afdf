"""What a step of generation does with keys and values that are kept: write the newest, and look at each row's own.

A row reads the keys that its query sees and no others, where a mask would have every row read as many as the longest
has. Each score and each sum has one order, whatever else is in the batch.
"""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from hornbook.kernels.scalar import exponential, i32, i64, largest, load, store, total
from hornbook.kernels.team import Kernel, float_argument, is_bf16, launch, supports


def attend_to_cached(
    query: Float[Tensor, "batch heads queries dim"],
    key: Float[Tensor, "batch kv_heads keys dim"],
    value: Float[Tensor, "batch kv_heads keys value_dim"],
    starts: Int[Tensor, "rows queries"],
    ends: Int[Tensor, "rows queries"],
    scale: float,
) -> Float[Tensor, "batch heads queries value_dim"]:
    """softmax(scale Q K^T) V over the keys `starts` to `ends` - 1 (int32) that each query sees; zeros where none are.

    Without gradients. Keys and values may be views of larger buffers; scale is above 0. The result lies [batch,
    queries, heads, value_dim] in memory, as the output projection reads it.
    """
    batch, heads, queries, dim = query.shape
    key, value = (each if each.stride(3) == 1 else each.contiguous() for each in (key, value))
    out = query.new_empty(batch, queries, heads, value.shape[3])
    shape = (heads, key.shape[1], queries, dim, value.shape[3], key.shape[2], 0 if len(starts) == 1 else queries)
    given = (query.contiguous(), starts.contiguous(), ends.contiguous())
    cached = (*key.stride()[:3], *value.stride()[:3], key.data_ptr(), value.data_ptr())
    launch(_attend_kernel, batch * heads * queries, is_bf16(query), *shape, scale, *given, out, *cached)
    return out.transpose(1, 2)


@Kernel
def _attend_kernel(first, last, _chunk, a, values):
    heads, kv_heads, queries, dim, value_dim, keys, step = a[1], a[2], a[3], a[4], a[5], a[6], a[7]
    scale = float_argument(a, 8)
    query, starts, ends, out = values(a[9]), i32(a[10]), i32(a[11]), values(a[12])
    key_row, key_head, key_step, value_row, value_head, value_step = a[13], a[14], a[15], a[16], a[17], a[18]
    key, value = values(a[19]), values(a[20])
    weights, sums = np.empty(keys, np.float32), np.empty(value_dim, np.float32)
    for row in range(first, last):
        at, head, place = row // (heads * queries), row // queries % heads, row % queries
        kv_head = head // (heads // kv_heads)
        start, count = starts[at * step + place], ends[at * step + place] - starts[at * step + place]
        q = query[row * dim : (row + 1) * dim]
        begin = at * key_row + kv_head * key_head + start * key_step
        for j in range(count):
            k = key[begin + j * key_step : begin + j * key_step + dim]
            score = np.float32(0)
            for d in range(dim):
                score += load(q, d) * load(k, d)
            weights[j] = score
        top = largest(weights, count)
        for j in range(count):
            weights[j] = exponential((weights[j] - top) * scale)
        share = np.float32(1) / total(weights, count) if count > 0 else np.float32(0)
        for d in range(value_dim):
            sums[d] = 0
        begin = at * value_row + kv_head * value_head + start * value_step
        for j in range(count):
            v, weight = value[begin + j * value_step : begin + j * value_step + value_dim], weights[j]
            for d in range(value_dim):
                sums[d] += weight * load(v, d)
        place = ((at * queries + place) * heads + head) * value_dim
        for d in range(value_dim):
            store(out, place + d, sums[d] * share)


def write_columns(
    buffers: tuple[Float[Tensor, "slots kv_heads columns dim"], Float[Tensor, "slots kv_heads columns value_dim"]],
    parts: tuple[Float[Tensor, "rows kv_heads 1 dim"], Float[Tensor, "rows kv_heads 1 value_dim"]],
    columns: Int[Tensor, " rows"],
) -> None:
    """Write one key and one value of each row at its column (int64); buffers are contiguous."""
    rows, heads, _, dim = parts[0].shape
    shape = (heads, buffers[0].shape[2], dim, parts[1].shape[3])
    launch(_write_kernel, rows, is_bf16(parts[0]), *shape, columns, *buffers, *(each.contiguous() for each in parts))


@Kernel
def _write_kernel(first, last, _chunk, a, values):
    heads, columns, dim, value_dim, at = a[1], a[2], a[3], a[4], i64(a[5])
    keys, held_values, key, value = values(a[6]), values(a[7]), values(a[8]), values(a[9])
    for row in range(first, last):
        for head in range(row * heads, (row + 1) * heads):
            place = head * columns + at[row]
            for d in range(dim):
                keys[place * dim + d] = key[head * dim + d]
            for d in range(value_dim):
                held_values[place * value_dim + d] = value[head * value_dim + d]


def takes(*tensors: Tensor) -> bool:
    """Whether these kernels may work on these: they have no gradients."""
    return not torch.is_grad_enabled() and supports(*tensors)
