"""Keyed dropout in one pass, with nothing saved: backward computes the same decisions again."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from hornbook.kernels.compiled import GOLDEN, MIX_FIRST, MIX_SECOND
from hornbook.kernels.scalar import i64, load, store
from hornbook.kernels.team import Kernel, float_argument, is_bf16, launch


class DropoutFunction(torch.autograd.Function):
    """x [batch, time, width], hashes [batch] (int64), threshold of 2^24, scale, position of the first values -> x,
    dropped and scaled."""

    @staticmethod
    def forward(ctx, x: Tensor, hashes: Tensor, threshold: int, scale: float, first: int = 0) -> Tensor:
        ctx.save_for_backward(hashes)
        ctx.settings = 1, (0, x.shape[2], first * x.shape[2]), threshold, scale
        return _drop(x, hashes, *ctx.settings)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (hashes,) = ctx.saved_tensors
        return _drop(grads[0], hashes, *ctx.settings), None, None, None, None


def drop_probabilities(x: Tensor, hashes: Tensor, begin: tuple[int, int, int], threshold: int, scale: float) -> Tensor:
    """A tile of attention probabilities (`hornbook.model.layers.dropout.AttentionDropout`), dropped.

    x [rows, heads, queries, keys]; hashes [rows] (int64); begin: numbers of the first head, query and key.
    """
    head, query, key = begin
    return _drop(x, hashes, x.shape[1], (1 << 48, 1 << 24, (head << 48) + (query << 24) + key), threshold, scale)


def _drop(x: Tensor, hashes: Tensor, heads: int, indices: tuple[int, int, int], threshold: int, scale: float) -> Tensor:
    """x [rows, heads, positions, values], or without the dim of heads; hashes [rows].

    indices: from one head to the next, from one position to the next, and of the first value; those of a position's
    values count on by one.
    """
    x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    positions, width = x.shape[-2:]
    shape = (heads, positions, width, *indices, threshold, scale)
    launch(_kernel, x.numel() // width, is_bf16(x), *shape, x, hashes.contiguous(), y)
    return y


@njit(inline="always")
def mix(x):
    """SplitMix64, as `hornbook.model.layers.dropout.mix`."""
    x = np.uint64(x + GOLDEN)
    x = np.uint64((x ^ (x >> np.uint64(30))) * MIX_FIRST)
    x = np.uint64((x ^ (x >> np.uint64(27))) * MIX_SECOND)
    return np.uint64(x ^ (x >> np.uint64(31)))


@Kernel
def _kernel(first, last, _chunk, a, values):
    heads, positions, width, per_head, per_position, begin = a[1], a[2], a[3], a[4], a[5], a[6]
    limit, scale, x, hashes, y = np.uint64(a[7]), float_argument(a, 8), values(a[9]), i64(a[10]), values(a[11])
    for row in range(first, last):
        head, position = row // positions % heads, row % positions
        row_hash = np.uint64(hashes[row // positions // heads])
        index = np.uint64(head * per_head + position * per_position + begin)
        x_row, y_row = x[row * width : (row + 1) * width], y[row * width : (row + 1) * width]
        for j in range(width):
            keep = (mix(row_hash ^ mix(np.uint64(index + np.uint64(j)))) >> np.uint64(40)) < limit
            store(y_row, j, load(x_row, j) * scale if keep else np.float32(0))
