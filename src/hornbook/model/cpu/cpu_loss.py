"""Cross-entropy with label smoothing, z-loss and a soft cap, and its gradient in the place of the logits.

The formulas are those of `hornbook.model.heads.losses`. A thread holds two rows of the vocabulary's length in float32
(capped logits and exponentials, which stay in cache), so memory is that of plain cross-entropy. The plain form has a
kernel of its own (`softmax.cross_entropy_`), which reads the logits three times and holds one row.
"""

import numpy as np
from numba import njit
from torch import Tensor

from hornbook.kernels.scalar import OPTIONS, exponential, f32, i64, largest, load, store, total
from hornbook.kernels.team import Kernel, float_argument, is_bf16, launch

SMALLEST_NORMAL = np.finfo(np.float32).tiny
TANH = tuple(
    np.float32(c)
    for c in (1, -1 / 3, 2 / 15, -17 / 315, 62 / 2835, -1382 / 155925, 21844 / 6081075, -929569 / 638512875)
)
"""Taylor coefficients of x, x^3, x^5 ..."""


def cross_entropy_with_terms_(
    logits: Tensor,
    targets: Tensor,
    weights: Tensor,
    losses: Tensor,
    z_losses: Tensor,
    want_grad: bool,
    *,
    smoothing: float,
    z_loss: float,
    softcap: float,
    num_real_tokens: int,
) -> None:
    """Fill losses and z_losses [rows] (float32, weighted); logits [rows, vocab] become gradients of both if wanted.

    softcap: 0 for none. num_real_tokens: the first rows of the vocabulary, over which label smoothing spreads.
    """
    rows, vocab = logits.shape
    numbers = float(smoothing), float(z_loss), float(softcap)
    tensors = logits, targets, weights, losses, z_losses
    launch(_terms_kernel, rows, is_bf16(logits), vocab, int(want_grad), num_real_tokens, *numbers, *tensors)


@njit(inline="always", **OPTIONS)
def hyperbolic_tangent(x):
    """tanh(x) in float32 to an absolute error of 1.5e-7; NaN stays NaN."""
    square = x * x
    y = TANH[7]
    for k in (6, 5, 4, 3, 2, 1, 0):
        y = y * square + TANH[k]
    far = np.float32(1) - np.float32(2) / (exponential(x + x) + np.float32(1))
    return x * y if abs(x) < np.float32(0.5) else far


@njit(inline="always", **OPTIONS)
def _slope(exponential, capped, factor, even, inverse_cap):
    """Gradient of a logit that is not the target. Subnormal numbers become 0: products with them are slow on a CPU."""
    slope = exponential * factor - even
    if inverse_cap > np.float32(0):
        share = capped * inverse_cap
        slope *= np.float32(1) - share * share
    return np.float32(0) if abs(slope) < SMALLEST_NORMAL else slope


@Kernel
def _terms_kernel(first, last, _chunk, a, values):
    vocab, want_grad, real = a[1], a[2], a[3]
    smoothing, zeta, cap = float_argument(a, 4), float_argument(a, 5), float_argument(a, 6)
    logits, targets, weights, losses, z_losses = values(a[7]), i64(a[8]), f32(a[9]), f32(a[10]), f32(a[11])
    capped, exponentials = np.empty(vocab, np.float32), np.empty(vocab, np.float32)
    one = np.float32(1)
    inverse_cap = one / cap if cap > 0 else np.float32(0)
    for row in range(first, last):
        z = logits[row * vocab : (row + 1) * vocab]
        weight, target = weights[row], targets[row]
        if cap > 0:
            for j in range(vocab):
                capped[j] = cap * hyperbolic_tangent(load(z, j) * inverse_cap)
        else:
            for j in range(vocab):
                capped[j] = load(z, j)
        top = largest(capped, vocab)
        for j in range(vocab):
            exponentials[j] = exponential(capped[j] - top)
        normalizer = total(exponentials, vocab)
        logsum = np.log(normalizer) + top
        loss = (one - smoothing) * (logsum - capped[target])
        if smoothing > 0:
            loss += smoothing * (logsum - total(capped, real) / np.float32(real))
        losses[row], z_losses[row] = weight * loss, weight * zeta * logsum * logsum
        if want_grad:
            factor = weight * (one + np.float32(2) * zeta * logsum) / normalizer
            even = weight * smoothing / np.float32(real)
            of_target = even if target < real else np.float32(0)
            of_target += (one - smoothing) * weight
            for j in range(real):
                store(z, j, _slope(exponentials[j], capped[j], factor, even, inverse_cap))
            for j in range(real, vocab):
                store(z, j, _slope(exponentials[j], capped[j], factor, np.float32(0), inverse_cap))
            # Again from the float32 exponential: subtracting from the rounded value would round twice.
            store(z, target, _slope(exponentials[target], capped[target], factor, of_target, inverse_cap))
