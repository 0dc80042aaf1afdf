"""What the text of a piece of a document says about it: repeated n-grams, and characters that are no text."""

import unicodedata
from typing import NamedTuple

import numpy as np
from jaxtyping import Int32

NGRAM = 13
"""Longest n-gram, in tokens, whose repetition is looked for (OLMo 2, arXiv 2501.00656, section 3.1)."""
SEVERAL = 4
"""An n-gram that follows itself as often as this counts as repeated: fewer occur in good text."""
SYMBOLS = frozenset("+=<>$|`~^")
"""Characters of code that Unicode does not call punctuation."""


class Repeats(NamedTuple):
    """N-grams that follow themselves in a piece."""

    share: float
    """Of the tokens, those inside of repetitions of `SEVERAL` and more."""
    longest: int
    """How often the most repeated n-gram comes in succession; 1: none is repeated."""


def repeats(tokens: Int32[np.ndarray, " n"]) -> Repeats:
    """N-grams of 1 to `NGRAM` tokens that follow themselves.

    OLMo 2 traces spikes of the gradient norm to such documents, and removes those with 32 repetitions and more.
    """
    inside, longest = np.zeros(len(tokens), bool), 1
    for size in range(1, min(NGRAM, len(tokens) // 2) + 1):
        same = np.concatenate([[False], tokens[size:] == tokens[:-size], [False]])
        edges = np.flatnonzero(np.diff(same.astype(np.int8)))
        for first, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            times = (end - first) // size + 1
            longest = max(longest, times)
            if times >= SEVERAL:
                inside[first : end + size] = True
    return Repeats(float(inside.mean()) if len(tokens) else 0.0, longest)


def non_text_share(text: str) -> float:
    """Share of the characters that are neither letters, digits, whitespace, punctuation nor symbols of code."""
    odd = sum(not (each.isalnum() or each.isspace() or _is_punctuation(each)) for each in text)
    return odd / len(text) if text else 0.0


def _is_punctuation(character: str) -> bool:
    return unicodedata.category(character)[0] == "P" or character in SYMBOLS
