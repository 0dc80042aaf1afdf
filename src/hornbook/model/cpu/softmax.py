"""Causal softmax of a block of scores and its gradient, in place.

A block is scores [groups, queries, keys]: query i sees keys starts[i] .. ends[i] - 1, counted from the block's first
key; the rest become exact zeros. P = softmax(scale * S), and with D = sum_j P dP: dS = scale * P (dP - D).
"""

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from hornbook.model.cpu.scalar import OPTIONS, bf16, exponential, f32, i64, load, store, total
from hornbook.model.cpu.team import Kernel, arguments, float_argument, is_bf16, launch, next_rows, supports


def softmax_(scores: Tensor, starts: Tensor, ends: Tensor, scale: float) -> None:
    """Scores [groups, queries, keys] become probabilities; starts, ends [queries] (int64)."""
    if supports(scores):
        groups, queries, keys = scores.shape
        launch(_softmax_kernel, groups * queries, is_bf16(scores), queries, keys, scale, scores, starts, ends)
        return
    place = torch.arange(scores.shape[-1], device=scores.device)
    hidden = (place < starts[:, None]) | (place >= ends[:, None])
    scores.copy_((scores * scale).masked_fill(hidden, -math.inf).softmax(-1))


def softmax_backward_(grads: Tensor, probabilities: Tensor, starts: Tensor, ends: Tensor, scale: float) -> None:
    """Gradients of the probabilities become gradients of the scores."""
    if supports(grads, probabilities):
        groups, queries, keys = grads.shape
        shape = (queries, keys, scale)
        launch(_backward_kernel, groups * queries, is_bf16(grads), *shape, grads, probabilities, starts, ends)
        return
    inner = (grads * probabilities).sum(-1, keepdim=True)
    grads.sub_(inner).mul_(probabilities).mul_(scale)


@njit(inline="always", **OPTIONS)
def _softmax(first, last, queries, keys, scale, scores, starts, ends):
    exponentials = np.empty(keys, np.float32)
    for row in range(first, last):
        start, end = starts[row % queries], ends[row % queries]
        base = row * keys
        whole = scores[base : base + keys]
        seen = scores[base + start : base + end]
        count = end - start
        largest = np.float32(-np.inf)
        for j in range(count):
            largest = max(largest, load(seen, j))
        for j in range(count):
            exponentials[j] = exponential((load(seen, j) - largest) * scale)
        inverse = np.float32(1) / total(exponentials, count)
        for j in range(count):
            store(seen, j, exponentials[j] * inverse)
        for j in range(start):
            whole[j] = 0
        for j in range(end, keys):
            whole[j] = 0


@njit(inline="always", **OPTIONS)
def _backward(first, last, queries, keys, scale, grads, probabilities, starts, ends):
    for row in range(first, last):
        start, end = starts[row % queries], ends[row % queries]
        base = row * keys
        whole = grads[base : base + keys]
        d, p = grads[base + start : base + end], probabilities[base + start : base + end]
        inner = np.float32(0)
        for j in range(end - start):
            inner += load(d, j) * load(p, j)
        for j in range(end - start):
            store(d, j, (load(d, j) - inner) * load(p, j) * scale)
        for j in range(start):
            whole[j] = 0
        for j in range(end, keys):
            whole[j] = 0


@Kernel
def _softmax_kernel(pointer):
    a = arguments(pointer)
    scale = float_argument(a, 3)
    while True:
        first, last, _ = next_rows(pointer)
        if first == last:
            return
        if a[0]:
            _softmax(first, last, a[1], a[2], scale, bf16(a[4]), i64(a[5]), i64(a[6]))
        else:
            _softmax(first, last, a[1], a[2], scale, f32(a[4]), i64(a[5]), i64(a[6]))


@Kernel
def _backward_kernel(pointer):
    a = arguments(pointer)
    scale = float_argument(a, 3)
    while True:
        first, last, _ = next_rows(pointer)
        if first == last:
            return
        if a[0]:
            _backward(first, last, a[1], a[2], scale, bf16(a[4]), bf16(a[5]), i64(a[6]), i64(a[7]))
        else:
            _backward(first, last, a[1], a[2], scale, f32(a[4]), f32(a[5]), i64(a[6]), i64(a[7]))
