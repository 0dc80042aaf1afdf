"""A nucleus and a draw of each row of logits, without putting a vocabulary in order.

The smallest share that is in a nucleus is found by its bits, ten at a time: for each value of them the sum of the
shares that have it, from the greatest down, until enough are together.
"""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hornbook.kernels.scalar import bits_float, exponential, f32, f64, float_bits, i64, largest, load, u8
from hornbook.kernels.team import Kernel, is_bf16, launch

_DIGIT = 1024
"""Values of ten bits; a share is 1 at most, so that three times ten are all that it has."""
_LEAST = 1e-300
"""A nucleus is never empty: the likeliest token has a share of 1, which is more than a probability rounded to 0."""


def outside_nucleus(logits: Float[Tensor, "rows vocab"], least: Float[Tensor, "rows 1"]) -> Bool[Tensor, "rows vocab"]:
    """True where a token is not among the likeliest that together reach a probability; of equal ones the first stay.

    At least one of each row stays, and all of a row that has a NaN.
    """
    outside = torch.empty(logits.shape, dtype=torch.bool)
    given = logits.contiguous(), least.float().contiguous()
    launch(_nucleus_kernel, len(logits), is_bf16(logits), logits.shape[1], *given, outside)
    return outside


@Kernel
def _nucleus_kernel(first, last, _chunk, a, values):
    vocab, logits, least, outside = a[1], values(a[2]), f32(a[3]), u8(a[4])
    shares, sums = np.empty(vocab, np.float32), np.empty(_DIGIT, np.float64)
    for row in range(first, last):
        x = logits[row * vocab : (row + 1) * vocab]
        top = largest(x, vocab)
        for j in range(vocab):
            shares[j] = exponential(load(x, j) - top)
        prefix, before, wanted = 0, 0.0, 0.0
        for shift in (20, 10, 0):
            for digit in range(_DIGIT):
                sums[digit] = 0
            for j in range(vocab):
                bits = np.int64(float_bits(shares[j]))
                if bits >> (shift + 10) == prefix:
                    sums[(bits >> shift) % _DIGIT] += np.float64(shares[j])
            if shift == 20:
                for digit in range(_DIGIT):
                    wanted += sums[digit]
                wanted = max(wanted * np.float64(least[row]), _LEAST)
            digit = _DIGIT - 1
            while digit > 0 and before + sums[digit] < wanted:
                before += sums[digit]
                digit -= 1
            prefix = prefix * _DIGIT + digit
        smallest = bits_float(np.uint32(prefix))
        equal = np.int64(min(np.ceil((wanted - before) / np.float64(smallest)), vocab)) if smallest > 0 else 0
        for j in range(vocab):
            is_equal = shares[j] == smallest and equal > 0
            equal -= is_equal
            outside[row * vocab + j] = shares[j] < smallest or (shares[j] == smallest and not is_equal)


def draw_tokens(logits: Float[Tensor, "rows vocab"], uniform: Float[Tensor, " rows"]) -> Int[Tensor, " rows"]:
    """Of each row the token whose interval of the distribution function holds its number (float64), or the vocabulary's
    size where that lies at the end of the last interval."""
    found = torch.empty(len(logits), dtype=torch.int64)
    launch(_draw_kernel, len(logits), is_bf16(logits), logits.shape[1], logits.contiguous(), uniform, found)
    return found


@Kernel
def _draw_kernel(first, last, _chunk, a, values):
    vocab, logits, uniform, found = a[1], values(a[2]), f64(a[3]), i64(a[4])
    shares = np.empty(vocab, np.float32)
    for row in range(first, last):
        x = logits[row * vocab : (row + 1) * vocab]
        top = largest(x, vocab)
        for j in range(vocab):
            shares[j] = exponential(load(x, j) - top)
        whole = 0.0
        for j in range(vocab):
            whole += np.float64(shares[j])
        point, reached, token = uniform[row] * whole, 0.0, 0
        while token < vocab:
            reached += np.float64(shares[token])
            if reached > point:
                break
            token += 1
        found[row] = token
