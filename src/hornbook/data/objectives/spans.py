"""Span corruption: which tokens of a piece are taken out, and how source and target spell that (T5).

Of n tokens, round(density n) are noise, in round(noise / mean) spans; the lengths of the spans, and of the runs between
them, are uniform among all compositions of the two numbers; a piece begins with a run and ends with a span. The
source has a sentinel for each span, the target a sentinel for each run, both end with the end token (Raffel et al.
2020, arXiv 1910.10683, section 3.1.4). With one span the end of the text is taken out: UL2's S-denoiser.
"""

import numpy as np

from hornbook.data.order.random_keys import mark_subset
from hornbook.kernels.compiled import compiled


@compiled
def span_counts(length, density, mean):
    """(noise tokens, spans) of a piece of `length` tokens, at least 2; roundings are to even, as in T5."""
    noise = min(max(np.int64(np.rint(length * density)), 1), length - 1)
    spans = min(max(np.int64(np.rint(noise / mean)), 1), noise, length - noise)
    return noise, spans


@compiled
def span_sizes(length, density, mean):
    """(source tokens, target tokens) of a piece of `length` tokens, end tokens among them."""
    noise, spans = span_counts(length, density, mean)
    return length - noise + spans + 1, noise + spans + 1


@compiled
def corrupt_spans(text, density, mean, sentinels, source, target, marks, state):
    """Write source and target of a piece without their end tokens; returns (tokens written to each, state).

    `marks` is scratch memory, bool [at least text.size].
    """
    noise, spans = span_counts(text.size, density, mean)
    kept = text.size - noise
    marks[: text.size] = False
    # marks[j] says that a part of the composition ends with its token j: of the kept first, of the noise after them.
    state = mark_subset(marks, kept - 1, spans - 1, state)
    state = mark_subset(marks[kept:], noise - 1, spans - 1, state)
    marks[kept - 1] = marks[text.size - 1] = True
    s, t, at, j, k = 0, 0, 0, 0, kept
    for span in range(spans):
        while True:
            source[s] = text[at]
            s, at, j = s + 1, at + 1, j + 1
            if marks[j - 1]:
                break
        source[s] = target[t] = sentinels[span]
        s, t = s + 1, t + 1
        while True:
            target[t] = text[at]
            t, at, k = t + 1, at + 1, k + 1
            if marks[k - 1]:
                break
    return s, t, state
