"""Pieces of text to pairs of a source and a target, for encoder-decoders.

Pairs are written one after the other without padding, and only then put into the tensors of microbatches: draws,
counts and hashes do not depend on how rows are cut into microbatches.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xxhash
from jaxtyping import Int32, Int64, UInt64

from hornbook.data.objectives.infill import infill, permute_sentences
from hornbook.data.objectives.spans import corrupt_spans, span_sizes
from hornbook.kernels.compiled import compiled, inlined


class NoiseTable(NamedTuple):
    """The noise of the components of a mixture, a column each."""

    bounds: np.ndarray  # float64 [components]: cumulated shares of the rows
    infills: np.ndarray  # bool [components]: text infilling, else span corruption
    rates: np.ndarray  # float64 [components]: share of tokens that is taken out
    means: np.ndarray  # float64 [components]: mean length of a span, inf for one span
    modes: np.ndarray  # int64 [components]: token the source begins with, or -1
    starts: np.ndarray  # int64 [components]: first token of the decoder's input
    permutes: np.ndarray  # bool [components]: sentences are shuffled
    poisson: np.ndarray  # float64 [components, lengths]: probability of each span length or a shorter one


class Roles(NamedTuple):
    """Token ids by role."""

    sentinels: np.ndarray  # int32 [sentinels], in the order of use
    mask: int
    begin: int  # -1 where no token begins a text
    end: int
    pad: int
    ends_sentence: np.ndarray  # bool [vocab]


@inlined
def pair_sizes(noises, roles, component, length):
    """(source tokens, target tokens) of a piece of `length` tokens; a source of infilling may be shorter."""
    if noises.infills[component]:
        both = length + 1 + (roles.begin >= 0)
        return both, both
    source, target = span_sizes(length, noises.rates[component], noises.means[component])
    return source + (noises.modes[component] >= 0), target


@inlined
def _infill_pair(noises, roles, component, text, source, target, scratch, state):
    s = t = 0
    if roles.begin >= 0:
        source[0] = target[0] = roles.begin
        s = t = 1
    marks, numbers, more, shuffled = scratch
    target[t : t + text.size] = text
    clean = text
    if noises.permutes[component]:
        state = permute_sentences(text, roles.ends_sentence, shuffled, numbers, more, state)
        clean = shuffled[: text.size]
    written, state = infill(
        clean, noises.rates[component], noises.poisson[component], roles.mask, source[s:], numbers, marks, state
    )
    return s + written, t + text.size, state


@inlined
def _span_pair(noises, roles, component, text, source, target, scratch, state):
    s = 0
    if noises.modes[component] >= 0:
        source[0] = noises.modes[component]
        s = 1
    rate, mean = noises.rates[component], noises.means[component]
    written, t, state = corrupt_spans(text, rate, mean, roles.sentinels, source[s:], target, scratch[0], state)
    return s + written, t, state


@compiled
def _write_pairs(noises, roles, raw, bounds, sizes, chosen, keys, source, target, lengths):
    """Write all pairs; returns the used lengths of `source` and `target`. A target follows its start token."""
    longest = sizes.max() + 1
    numbers, more = np.empty(longest, np.int64), np.empty(longest, np.int64)
    scratch = np.empty(2 * longest, np.bool_), numbers, more, np.empty(longest, np.int32)
    at = s = t = np.int64(0)
    for row in range(chosen.size):
        component, state = chosen[row], keys[row]
        for p in range(bounds[row], bounds[row + 1]):
            text = raw[at : at + sizes[p]]
            target[t] = noises.starts[component]
            if noises.infills[component]:
                ds, dt, state = _infill_pair(
                    noises, roles, component, text, source[s:], target[t + 1 :], scratch, state
                )
            else:
                ds, dt, state = _span_pair(noises, roles, component, text, source[s:], target[t + 1 :], scratch, state)
            source[s + ds] = target[t + 1 + dt] = roles.end
            lengths[0, p], lengths[1, p] = ds + 1, dt + 1
            at, s, t = at + sizes[p], s + ds + 1, t + dt + 2
    return s, t


@dataclass(frozen=True, slots=True)
class Pairs:
    """The pairs of some rows, without padding."""

    source: Int32[np.ndarray, " source_tokens"]
    target: Int32[np.ndarray, " target_tokens"]
    """Of each piece the start token, then its targets."""
    lengths: Int64[np.ndarray, "2 pieces"]
    """Source tokens and targets of each piece."""
    bounds: Int64[np.ndarray, " rows+1"]
    """Where the pieces of each row begin, and the end of all."""

    @property
    def total_weight(self) -> int:
        """Targets."""
        return len(self.target) - self.lengths.shape[1]

    @property
    def token_hash(self) -> str:
        """xxh3_64 of all ids."""
        digest = xxhash.xxh3_64(self.source.data)
        digest.update(self.target.data)
        return digest.hexdigest()


def write_pairs(
    noises: NoiseTable,
    roles: Roles,
    raw: Int32[np.ndarray, " tokens"],
    bounds: Int64[np.ndarray, " rows+1"],
    sizes: Int64[np.ndarray, " pieces"],
    chosen: Int64[np.ndarray, " rows"],
    keys: UInt64[np.ndarray, " rows"],
) -> Pairs:
    """Pairs of pieces of text, whose tokens are `raw`, one after the other; each has `sizes`, at least 2.

    `bounds`: where the pieces of each row begin, and the end of all. `chosen`: the component of the mixture that each
    row belongs to. All draws for a row follow from its key.
    """
    lengths = np.empty((2, len(sizes)), np.int64)
    source, target = np.empty((2, 2 * len(raw) + 4 * len(sizes)), np.int32)
    s, t = _write_pairs(noises, roles, raw, bounds, sizes, chosen, keys, source, target, lengths)
    return Pairs(source[:s], target[:t], lengths, bounds)
