"""Cross-entropy of a chunk of logits, and its gradient in the same place.

loss = weight * (logsumexp(z) - z[target]); d z = weight * (softmax(z) - onehot(target)). Each exponential is
computed once, into a row of float32 that stays in cache.
"""

import numpy as np
from numba import njit
from torch import Tensor

from hornbook.model.cpu.scalar import OPTIONS, exponential, f32, i64, largest, load, store, total
from hornbook.model.cpu.team import Kernel, arguments, is_bf16, launch, next_rows


def cross_entropy_(logits: Tensor, targets: Tensor, weights: Tensor, losses: Tensor, want_grad: bool) -> None:
    """Fill losses [rows] (float32, weighted); logits [rows, vocab] become their gradients if wanted."""
    rows, vocab = logits.shape
    launch(_kernel, rows, is_bf16(logits), vocab, int(want_grad), logits, targets, weights, losses)


@njit(inline="always", **OPTIONS)
def _loss(first, last, vocab, want_grad, logits, targets, weights, losses):
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
            store(z, target, exponentials[target] * factor - weight)


@Kernel
def _kernel(pointer, values):
    a = arguments(pointer)
    while True:
        first, last, _ = next_rows(pointer)
        if first == last:
            return
        _loss(first, last, a[1], a[2], values(a[3]), i64(a[4]), f32(a[5]), f32(a[6]))
