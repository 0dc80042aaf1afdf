"""Keyed dropout of a tile of attention probabilities in one pass (`hornbook.model.attention.dropout`)."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from hornbook.model.cpu.dropout import drop_row
from hornbook.model.cpu.scalar import OPTIONS, i64
from hornbook.model.cpu.team import Kernel, arguments, float_argument, is_bf16, launch, next_rows


def drop(x: Tensor, places: Tensor, begin: tuple[int, int], threshold: int, scale: float) -> Tensor:
    """x [rows, heads, queries, keys], places [rows] (int64 hashes), positions of first query and key -> x, dropped."""
    _, heads, queries, keys = x.shape
    x, y = x.contiguous(), torch.empty_like(x, memory_format=torch.contiguous_format)
    shape = (heads, queries, keys, *begin, threshold, scale)
    launch(_kernel, x.numel() // keys, is_bf16(x), *shape, x, places.contiguous(), y)
    return y


@njit(inline="always", **OPTIONS)
def _drop(first, last, a, scale, x, places, y):
    heads, queries, keys = a[1], a[2], a[3]
    limit = np.uint64(a[6])
    for row in range(first, last):
        head, query = row // queries % heads, a[4] + row % queries
        place, index = np.uint64(places[row // queries // heads]), np.uint64((((head << 24) + query) << 24) + a[5])
        x_row, y_row = x[row * keys : (row + 1) * keys], y[row * keys : (row + 1) * keys]
        drop_row(x_row, y_row, place, index, limit, scale)


@Kernel
def _kernel(pointer, values):
    a = arguments(pointer)
    scale = float_argument(a, 7)
    while True:
        first, last, _ = next_rows(pointer)
        if first == last:
            return
        _drop(first, last, a, scale, values(a[8]), i64(a[9]), values(a[10]))
