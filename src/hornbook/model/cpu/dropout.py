"""Keyed dropout in one pass, with nothing saved: backward computes the same decisions again."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from hornbook.kernels.compiled import GOLDEN, MIX_FIRST, MIX_SECOND
from hornbook.model.cpu.scalar import OPTIONS, i64, load, store
from hornbook.model.cpu.team import Kernel, arguments, float_argument, is_bf16, launch, next_rows


class DropoutFunction(torch.autograd.Function):
    """x [batch, time, width], hashes [batch] (int64), threshold of 2^24, scale -> x, dropped and scaled."""

    @staticmethod
    def forward(ctx, x: Tensor, hashes: Tensor, threshold: int, scale: float) -> Tensor:
        ctx.save_for_backward(hashes)
        ctx.settings = threshold, scale
        return _run(x.contiguous(), hashes, threshold, scale)

    @staticmethod
    def backward(ctx, *grads: Tensor):
        (hashes,) = ctx.saved_tensors
        return _run(grads[0].contiguous(), hashes, *ctx.settings), None, None, None


def _run(x: Tensor, hashes: Tensor, threshold: int, scale: float) -> Tensor:
    batch, time, width = x.shape
    y = torch.empty_like(x)
    launch(_kernel, batch * time, is_bf16(x), time, width, threshold, scale, x, hashes.contiguous(), y)
    return y


@njit(inline="always")
def mix(x):
    """SplitMix64, as `hornbook.model.layers.dropout.mix`."""
    x = np.uint64(x + GOLDEN)
    x = np.uint64((x ^ (x >> np.uint64(30))) * MIX_FIRST)
    x = np.uint64((x ^ (x >> np.uint64(27))) * MIX_SECOND)
    return np.uint64(x ^ (x >> np.uint64(31)))


@njit(inline="always", **OPTIONS)
def drop_row(x, y, row_hash, index, limit, scale):
    """y = scale * x where the hash of `row_hash` and the element's index (from `index` on) is below `limit`, else 0."""
    for j in range(x.size):
        keep = (mix(row_hash ^ mix(np.uint64(index + np.uint64(j)))) >> np.uint64(40)) < limit
        store(y, j, load(x, j) * scale if keep else np.float32(0))


@njit(inline="always", **OPTIONS)
def _drop(first, last, time, width, threshold, scale, x, hashes, y):
    limit = np.uint64(threshold)
    for row in range(first, last):
        row_hash, index = np.uint64(hashes[row // time]), np.uint64(row % time * width)
        x_row, y_row = x[row * width : (row + 1) * width], y[row * width : (row + 1) * width]
        drop_row(x_row, y_row, row_hash, index, limit, scale)


@Kernel
def _kernel(pointer, values):
    a = arguments(pointer)
    scale = float_argument(a, 4)
    while True:
        first, last, _ = next_rows(pointer)
        if first == last:
            return
        _drop(first, last, a[1], a[2], a[3], scale, values(a[5]), i64(a[6]), values(a[7]))


# ---- A tile of attention probabilities (`hornbook.model.layers.dropout.AttentionDropout`)


def drop_probabilities(x: Tensor, hashes: Tensor, begin: tuple[int, int], threshold: int, scale: float) -> Tensor:
    """x [rows, heads, queries, keys], hashes [rows] (int64), positions of first query and key -> x, dropped."""
    _, heads, queries, keys = x.shape
    x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    shape = (heads, queries, keys, *begin, threshold, scale)
    launch(_attention_kernel, x.numel() // keys, is_bf16(x), *shape, x, hashes.contiguous(), y)
    return y


@njit(inline="always", **OPTIONS)
def _drop_probabilities(first, last, a, scale, x, hashes, y):
    heads, queries, keys = a[1], a[2], a[3]
    limit = np.uint64(a[6])
    for row in range(first, last):
        head, query = row // queries % heads, a[4] + row % queries
        row_hash, index = np.uint64(hashes[row // queries // heads]), np.uint64((((head << 24) + query) << 24) + a[5])
        x_row, y_row = x[row * keys : (row + 1) * keys], y[row * keys : (row + 1) * keys]
        drop_row(x_row, y_row, row_hash, index, limit, scale)


@Kernel
def _attention_kernel(pointer, values):
    a = arguments(pointer)
    scale = float_argument(a, 7)
    while True:
        first, last, _ = next_rows(pointer)
        if first == last:
            return
        _drop_probabilities(first, last, a, scale, values(a[8]), i64(a[9]), values(a[10]))
