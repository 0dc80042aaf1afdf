"""Mixup (Zhang et al. 2018, arXiv 1710.09412) of the texts of a row: with which other each is mixed, and how much.

The vectors of the tokens are mixed, as Guo et al. 2019 (arXiv 1905.08941) mix words: share * own + (1 - share) * the
other's at the same place of its text, and so are the losses of both labels. The texts of a row are shifted by a number
drawn for it, so each is mixed with one, and one with it; a text alone in its row stays as it is. Draws are a pure
function of the row's key.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64, UInt64

from hornbook.data.order.random_keys import STEP, below, fraction
from hornbook.kernels.compiled import compiled, mix


class Partners(NamedTuple):
    """For each piece of some rows."""

    others: Int64[np.ndarray, " pieces"]
    """Number of the piece it is mixed with; its own where it is alone."""
    shares: Float64[np.ndarray, " pieces"]
    """How much of itself stays, from [0, 1]."""


@compiled
def _beta(alpha, state):
    """(a number with the distribution Beta(alpha, alpha), alpha at most 1; state): Johnk 1964, Metrika 8."""
    while True:
        state += STEP
        first = 1.0 - fraction(mix(state))
        state += STEP
        second = 1.0 - fraction(mix(state))
        if first ** (1.0 / alpha) + second ** (1.0 / alpha) <= 1.0:
            return 1.0 / (1.0 + np.exp((np.log(second) - np.log(first)) / alpha)), state


@compiled
def _draw(offsets, keys, alpha, others, shares):
    for row in range(keys.size):
        first, count, state = offsets[row], offsets[row + 1] - offsets[row], keys[row]
        turn = 0
        if count > 1:
            state += STEP
            turn = 1 + below(mix(state), count - 1)
        for number in range(count):
            others[first + number] = first + (number + turn) % count
            if count > 1:
                shares[first + number], state = _beta(alpha, state)


def partners(offsets: Int64[np.ndarray, " rows_and_1"], keys: UInt64[np.ndarray, " rows"], alpha: float) -> Partners:
    """Drawn from the keys of rows, whose first pieces have the numbers `offsets`."""
    found = Partners(np.empty(offsets[-1], np.int64), np.ones(offsets[-1]))
    _draw(offsets, keys, alpha, *found)
    return found
