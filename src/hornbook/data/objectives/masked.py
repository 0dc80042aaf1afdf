"""Masked language modelling: which tokens of a row are chosen, and what replaces them.

Of a row's n ordinary tokens exactly max(1, round(rate n)) are chosen (none of 0). Each is replaced by the mask with
probability 0.8, by a random ordinary token with 0.1, and kept with 0.1 (Devlin et al. 2019, arXiv 1810.04805,
section 3.1); for a generator always by the mask. Special tokens, and with them padding, are neither chosen nor drawn.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int64, UInt64

from hornbook.data.batch_builder import BuildContext
from hornbook.data.config.objectives import Masked, Replaced
from hornbook.data.order.random_keys import STEP, below, fraction, mark_subset, shuffle
from hornbook.data.packing.rows import RowArrays
from hornbook.data.packing.text_rows import ObjectiveTransform
from hornbook.data.vocabulary import load_vocabulary
from hornbook.kernels.compiled import compiled, inlined, mix

MASK_SHARE, RANDOM_SHARE = 0.8, 0.1


class _Words(NamedTuple):
    masked: float  # share of the chosen tokens that is masked
    changed: float  # share that is masked or random
    special: np.ndarray  # bool [vocab]
    ordinary: np.ndarray  # int32 [ids]
    begins_inside: np.ndarray  # bool [vocab]; empty where tokens are chosen one by one
    ends_inside: np.ndarray  # bool [vocab]


@compiled
def _candidates(special, tokens, places):
    """Places of the tokens that may be chosen; returns their number."""
    count = 0
    for j in range(tokens.size):
        places[count] = j
        count += not special[tokens[j]]  # without a branch, which would be mispredicted
    return count


@compiled
def _find_words(begins_inside, ends_inside, tokens, positions, places, count, firsts):
    """Number of the first candidate of each word into `firsts`; returns the number of words."""
    found = 0
    for c in range(count):
        j = places[c]
        inside = c > 0 and places[c - 1] == j - 1 and positions[j] > 0
        if not (inside and begins_inside[tokens[j]] and ends_inside[tokens[j - 1]]):
            firsts[found] = c
            found += 1
    firsts[found] = count
    return found


@compiled
def _mark_words(firsts, order, found, wanted, marks, state):
    """Mark whole words in random order, skipping words that would exceed `wanted` tokens. Returns the state.

    At least one is marked: where every word is longer than `wanted`, the shortest.
    """
    for w in range(found):
        order[w] = w
    state = shuffle(order, found, state)
    marked, shortest = 0, order[0]
    for k in range(found):
        first, end = firsts[order[k]], firsts[order[k] + 1]
        if end - first < firsts[shortest + 1] - firsts[shortest]:
            shortest = order[k]
        if marked + end - first <= wanted:
            marks[first:end] = True
            marked += end - first
    if marked == 0:
        marks[firsts[shortest] : firsts[shortest + 1]] = True
    return state


@inlined
def _fate(words, mask, token, state):
    """Replacement of a chosen token; returns (token, state)."""
    state += STEP
    fate = fraction(mix(state))
    if fate < words.masked:
        token = mask
    elif fate < words.changed:
        state += STEP
        token = np.int64(words.ordinary[below(mix(state), words.ordinary.size)])
    return token, state


@compiled
def _mask_rows(words, mask, rate, rows, which, keys):
    sequence = rows.tokens.shape[1]
    places, firsts, order = np.empty(sequence, np.int64), np.empty(sequence + 1, np.int64), np.empty(sequence, np.int64)
    marks = np.empty(sequence, np.bool_)
    for i in range(which.size):
        row, state = which[i], keys[which[i]]
        tokens, ids, weights = rows.tokens[row], rows.ids[row], rows.weights[row]
        rows.targets[row] = tokens
        weights[:] = 0.0
        count = _candidates(words.special, tokens, places)
        if count == 0:
            continue
        wanted = max(1, np.int64(np.rint(rate * count)))
        marks[:count] = False
        if words.begins_inside.size:
            found = _find_words(
                words.begins_inside, words.ends_inside, tokens, rows.positions[row], places, count, firsts
            )
            state = _mark_words(firsts, order, found, wanted, marks, state)
        else:
            state = mark_subset(marks, count, wanted, state)
        for c in range(count):
            if marks[c]:
                j = places[c]
                tokens[j], state = _fate(words, mask, tokens[j], state)
                ids[j] = tokens[j]
                weights[j] = 1.0


class Masking(ObjectiveTransform):
    """Turns rows of text into masked rows, in place."""

    def __init__(self, config: Masked | Replaced, context: BuildContext, key: str) -> None:
        """`key` names the setting in errors. Raises UsageError where the tokenizer has no mask token."""
        vocabulary = load_vocabulary(context.corpus)
        if vocabulary.special.mask is None:
            raise vocabulary.lacks(key, "a mask token", "masked", "[MASK] or <mask>")
        self.dynamic, self.detects = config.dynamic, config.detects
        self._mask = vocabulary.special.mask
        self._rate = config.eval_rate if context.evaluation and config.eval_rate is not None else config.rate
        none = np.empty(0, np.bool_)
        shares = (1.0, 1.0) if config.all_masked else (MASK_SHARE, MASK_SHARE + RANDOM_SHARE)
        self._words = _Words(
            *shares,
            vocabulary.is_special,
            vocabulary.ordinary,
            vocabulary.begins_inside if config.whole_word else none,
            vocabulary.ends_inside if config.whole_word else none,
        )

    def apply(self, rows: RowArrays, which: Int64[np.ndarray, " some"], keys: UInt64[np.ndarray, " rows"]) -> None:
        """Mask the rows numbered `which`; `keys` has one for each row."""
        _mask_rows(self._words, self._mask, self._rate, rows, which, keys)
