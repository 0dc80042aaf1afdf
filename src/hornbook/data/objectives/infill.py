"""Text infilling and sentence permutation: the noise of BART (Lewis et al. 2020, arXiv 1910.13461, section 2.2).

Of n tokens max(1, round(rate n)) are masked, in spans whose lengths are drawn from a Poisson distribution until they
suffice (the last one is cut). Each span becomes one mask token; a span of length 0 inserts one. All ways to arrange
the spans among the other tokens have the same chance.
"""

import math

import numpy as np
from jaxtyping import Float64

from hornbook.data.order.random_keys import STEP, choose, mark_subset, shuffle
from hornbook.kernels.compiled import compiled, mix

LONGEST_SPAN = 128
"""Longer spans have a probability below 1e-30 for the largest mean there can be."""


def poisson_bounds(mean: float) -> Float64[np.ndarray, " lengths"]:
    """Probability of each length or a shorter one."""
    terms = [math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(LONGEST_SPAN + 1)]
    bounds = np.cumsum(terms)
    bounds[-1] = 1.0
    return bounds


@compiled
def draw_spans(masked, bounds, spans, state):
    """Lengths that sum to `masked` into `spans`, in random order; returns (their number, state).

    There are never more spans than masked tokens, so that no source is longer than its text.
    """
    count, total = 0, np.int64(0)
    while total < masked:
        state += STEP
        length = min(choose(mix(state), bounds), masked - total)
        if count == masked - 1:
            length = masked - total
        spans[count] = length
        count, total = count + 1, total + length
    return count, shuffle(spans, count, state)


@compiled
def infill(text, rate, bounds, mask, source, spans, marks, state):
    """Write the corrupted piece; returns (tokens written, state).

    `spans` and `marks` are scratch memory, int64 and bool [at least text.size].
    """
    masked = max(1, np.int64(np.rint(rate * text.size)))
    count, state = draw_spans(masked, bounds, spans, state)
    places = text.size - masked + count
    marks[:places] = False
    state = mark_subset(marks, places, count, state)
    at, span = 0, 0
    for place in range(places):
        if marks[place]:
            source[place] = mask
            at += spans[span]
            span += 1
        else:
            source[place] = text[at]
            at += 1
    return places, state


@compiled
def permute_sentences(text, ends_sentence, out, firsts, order, state):
    """Write the sentences of `text` in random order; returns the state.

    `firsts` and `order` are scratch memory, int64 [at least text.size + 1].
    """
    count = 0
    begins = True
    for j in range(text.size):
        if begins:
            firsts[count], order[count] = j, count
            count += 1
        begins = ends_sentence[text[j]]
    firsts[count] = text.size
    state = shuffle(order, count, state)
    at = 0
    for k in range(count):
        first, end = firsts[order[k]], firsts[order[k] + 1]
        out[at : at + end - first] = text[first:end]
        at += end - first
    return state
