"""Learn the merges of byte-level BPE from the counts of words (Sennrich et al., arXiv:1508.07909).

The most frequent pair is merged first; of equals, the one of the lowest ids. A pair knows the positions where it stood
when it arose, so a merge touches only those; counts in the heap may be too high and are put right at the top.
A pair arises in one step only, that of its younger token, and no two merges spell the same token: before a token
is whole, its bytes are merged as if they stood alone, which has one outcome.
"""

from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

import numpy as np

from hornbook.errors import UsageError
from hornbook.kernels.compiled import GOLDEN, borrowed, compiled, inlined
from hornbook.text.tokenizer.bpe.count import WordCounts

_GAP, _GONE = -1, -2
_DONE, _PAIRS, _POSITIONS = 0, 1, 2
_HALF = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


class Words(NamedTuple):
    """All different words, with a gap before, between and after them."""

    symbols: np.ndarray
    """int32 [positions]: the token that starts here; _GAP, or _GONE inside a token."""
    token_starts: np.ndarray
    """int32 [positions]: at the last byte of a token, where it starts; _GAP in gaps."""
    numbers: np.ndarray
    """int32 [positions]: which word it is."""
    weights: np.ndarray
    """int64 [words]: how often it occurs."""


class Pairs(NamedTuple):
    """Every pair that ever stood anywhere."""

    table: np.ndarray
    """int32 [slots]: pair + 1, open addressing."""
    keys: np.ndarray
    """uint64: left << 32 | right."""
    counts: np.ndarray
    """int64: how often it occurs now; at most 0 once it is merged."""
    starts: np.ndarray
    """int64: where its positions start in the arena; unset for a pair that was gone in the step in which it arose."""
    lengths: np.ndarray
    """int32: at how many positions it arose."""


class MergeScratch(NamedTuple):
    """Scratch of one merge. Index 0: neighbours on the left, 1: on the right."""

    weights: np.ndarray
    """int64 [2, vocab]: by neighbour, how often its pair with the old token goes, and that with the new one comes."""
    lengths: np.ndarray
    """int64 [2, vocab]: by neighbour, at how many positions."""
    touched: np.ndarray
    """int64 [2, vocab]: which neighbours."""
    ids: np.ndarray
    positions: np.ndarray
    """int32 [2, occurrences]: neighbour and position of each new pair, in the order of the text."""


# Places in the array of sizes.
_TOKENS, _N_PAIRS, _N_POSITIONS = range(3)


def learn_merges(counts: WordCounts, byte_ids: list[int], vocab: int, least: int) -> list[tuple[int, int]]:
    """(left, right) of each new token in order, until there are `vocab` tokens or no pair occurs `least` times.

    byte_ids: tokens of the 256 bytes; new ones are numbered from the highest of them on.

    Raises UsageError where the different words fill 2 GiB.
    """
    data, starts, weights = counts.words
    positions = len(data) + len(starts) + 1
    if positions >= 2**31:
        raise UsageError("the text has over 2 GiB of different words: lower text.tokenizer.train_bytes")
    ids = np.array(byte_ids, np.int64)
    symbols, token_starts, numbers = np.empty((3, positions), np.int32)
    words = Words(symbols, token_starts, numbers, weights)
    _lay_out(data, starts, ids, words)
    sizes = np.zeros(3, np.int64)
    first = sizes[_TOKENS] = int(ids.max()) + 1
    lengths, merges = np.ones(vocab, np.int64), np.empty((vocab, 2), np.int64)
    capacity = 2 ** min(positions, 2**16).bit_length()
    columns = (np.zeros(capacity, dtype) for dtype in (np.uint64, np.int64, np.int64, np.int32))
    pairs = Pairs(np.zeros(2 * capacity, np.int32), *columns)
    arena = np.empty(max(2 * positions, 1024), np.int32)
    _find_first_pairs(words, pairs, arena, sizes)
    scratch = MergeScratch(*np.zeros((3, 2, vocab), np.int64), *np.empty((2, 2, pairs.lengths.max()), np.int32))
    while lacking := _learn(words, lengths, pairs, arena, scratch, merges, sizes, max(least, 1)):
        if lacking == _PAIRS:
            pairs = Pairs(np.zeros(2 * len(pairs.table), np.int32), *map(_doubled, pairs[1:]))
            _fill(pairs.table, pairs.keys, sizes[_N_PAIRS])
        else:
            arena = _doubled(arena)
    return [(left, right) for left, right in merges[first : sizes[_TOKENS]].tolist()]


def _doubled(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, np.zeros_like(array)])


@compiled
def _lay_out(data, starts, byte_ids, words):
    position = 0
    for number in range(len(starts) - 1):
        words.symbols[position], words.token_starts[position] = _GAP, _GAP
        position += 1
        for i in range(starts[number], starts[number + 1]):
            words.symbols[position] = byte_ids[data[i]]
            words.token_starts[position], words.numbers[position] = position, number
            position += 1
    words.symbols[position:], words.token_starts[position:] = _GAP, _GAP


@inlined
def _slot_of(key, table):
    """Where a pair is looked for first."""
    return np.int64((key * GOLDEN) >> _HALF) & (len(table) - 1)


@compiled
def _fill(table, keys, count):
    for number in range(count):
        slot = _slot_of(keys[number], table)
        while table[slot]:
            slot = (slot + 1) & (len(table) - 1)
        table[slot] = number + 1


@inlined
def _pair_of(left, right, table, keys, sizes):
    """The number of a pair, which is entered if it is new: `keys` must have room for it."""
    key = np.uint64(left) << _HALF | np.uint64(right)
    slot = _slot_of(key, table)
    while table[slot] and keys[table[slot] - 1] != key:
        slot = (slot + 1) & (len(table) - 1)
    if not table[slot]:
        keys[sizes[_N_PAIRS]] = key
        sizes[_N_PAIRS] += 1
        table[slot] = sizes[_N_PAIRS]
    return np.int64(table[slot] - 1)


@compiled
def _find_first_pairs(words, pairs, arena, sizes):
    """Count the pairs of bytes, at most 2^16, and write the positions of each in the order of the text."""
    symbols = words.symbols
    for i in range(len(symbols) - 1):
        if symbols[i] >= 0 and symbols[i + 1] >= 0:
            pair = _pair_of(symbols[i], symbols[i + 1], pairs.table, pairs.keys, sizes)
            pairs.counts[pair] += words.weights[words.numbers[i]]
            pairs.lengths[pair] += 1
    ends = np.empty(sizes[_N_PAIRS], np.int64)
    for pair in range(sizes[_N_PAIRS]):
        pairs.starts[pair] = ends[pair] = sizes[_N_POSITIONS]
        sizes[_N_POSITIONS] += pairs.lengths[pair]
    for i in range(len(symbols) - 1):
        if symbols[i] >= 0 and symbols[i + 1] >= 0:
            pair = _pair_of(symbols[i], symbols[i + 1], pairs.table, pairs.keys, sizes)
            arena[ends[pair]] = i
            ends[pair] += 1


@inlined
def _note(side, neighbour, position, weight, scratch, noted, n_touched):
    """At a position, a neighbour's pair with the old token goes and one with the new token comes."""
    if scratch.lengths[side, neighbour] == 0:
        scratch.touched[side, n_touched[side]] = neighbour
        n_touched[side] += 1
    scratch.weights[side, neighbour] += weight
    scratch.lengths[side, neighbour] += 1
    scratch.ids[side, noted[side]], scratch.positions[side, noted[side]] = neighbour, position
    noted[side] += 1


@inlined
def _merge_positions(a, b, new, first, last, words, lengths, arena, scratch, noted, n_touched):
    """Merge a and b wherever they stand, in the order of the text, and note what becomes of their neighbours."""
    symbols, token_starts = words.symbols, words.token_starts
    for i in range(first, last):
        left = np.int64(arena[i])
        right = left + lengths[a]
        # Since the pair arose here, another merge may have taken one of its tokens; so may this one, as in "aaa".
        if symbols[left] != a or symbols[right] != b:
            continue
        behind = right + lengths[b]
        weight = words.weights[words.numbers[left]]
        before = np.int64(token_starts[left - 1])
        if before >= 0:
            _note(0, symbols[before], before, weight, scratch, noted, n_touched)
        if symbols[behind] >= 0:
            _note(1, symbols[behind], left, weight, scratch, noted, n_touched)
        symbols[left], symbols[right], token_starts[behind - 1] = new, _GONE, left


@inlined
def _recount(old, new, scratch, n_touched, pairs, sizes):
    """Counts of all pairs that go and come; `old` is the pair that was merged, by side."""
    for side in range(2):
        for i in range(n_touched[side]):
            other = scratch.touched[side, i]
            for token, sign in ((old[side], -1), (new, 1)):
                left, right = (other, token) if side == 0 else (token, other)
                pair = _pair_of(left, right, pairs.table, pairs.keys, sizes)
                pairs.counts[pair] += sign * scratch.weights[side, other]


@inlined
def _enter_new(new, scratch, noted, n_touched, pairs, arena, heap, sizes):
    """Put the pairs that came into the heap, and their positions into the arena; the scratch is zero again."""
    for side in range(2):
        for i in range(n_touched[side]):
            other = scratch.touched[side, i]
            left, right = (other, new) if side == 0 else (new, other)
            pair = _pair_of(left, right, pairs.table, pairs.keys, sizes)
            length, scratch.lengths[side, other] = scratch.lengths[side, other], -1
            if pairs.counts[pair] > 0:
                heappush(heap, (-pairs.counts[pair], pairs.keys[pair], pair))
                pairs.starts[pair], pairs.lengths[pair] = sizes[_N_POSITIONS], length
                scratch.lengths[side, other] = sizes[_N_POSITIONS]
                sizes[_N_POSITIONS] += length
        for i in range(noted[side]):
            position = scratch.lengths[side, scratch.ids[side, i]]
            if position >= 0:
                arena[position] = scratch.positions[side, i]
                scratch.lengths[side, scratch.ids[side, i]] += 1
        for i in range(n_touched[side]):
            scratch.weights[side, scratch.touched[side, i]] = scratch.lengths[side, scratch.touched[side, i]] = 0


@compiled
def _learn(words, lengths, pairs, arena, scratch, merges, sizes, least):
    """Merge until all is learned (_DONE) or the next merge needs more room for _PAIRS or _POSITIONS."""
    words = Words(
        borrowed(words.symbols), borrowed(words.token_starts), borrowed(words.numbers), borrowed(words.weights)
    )
    counts, keys, starts = borrowed(pairs.counts), borrowed(pairs.keys), borrowed(pairs.starts)
    pairs = Pairs(borrowed(pairs.table), keys, counts, starts, borrowed(pairs.lengths))
    views = borrowed(scratch.weights), borrowed(scratch.lengths), borrowed(scratch.touched)
    scratch = MergeScratch(views[0], views[1], views[2], borrowed(scratch.ids), borrowed(scratch.positions))
    arena, sizes, lengths, vocab = borrowed(arena), borrowed(sizes), borrowed(lengths), len(merges)
    noted, n_touched = np.zeros(2, np.int64), np.zeros(2, np.int64)
    # Greatest count first, then the lowest pair. After the step in which a pair arose its count only falls.
    heap = [(-counts[pair], keys[pair], pair) for pair in range(sizes[_N_PAIRS]) if counts[pair] > 0]
    heapify(heap)
    while sizes[_TOKENS] < vocab and heap:
        known, key, pair = heap[0]
        if known != -counts[pair]:
            heapreplace(heap, (-counts[pair], key, pair))
            continue
        if counts[pair] < least:
            break
        a, b = np.int64(key >> _HALF), np.int64(key & _LOW)
        start, length = starts[pair], np.int64(pairs.lengths[pair])
        if sizes[_N_PAIRS] + 2 * min(length, vocab) > len(keys):
            return _PAIRS
        if sizes[_N_POSITIONS] + 2 * length > len(arena):
            return _POSITIONS
        heappop(heap)
        counts[pair] = 0
        new = sizes[_TOKENS]
        merges[new, 0], merges[new, 1], lengths[new] = a, b, lengths[a] + lengths[b]
        sizes[_TOKENS] = new + 1
        noted[:], n_touched[:] = 0, 0
        _merge_positions(a, b, new, start, start + length, words, lengths, arena, scratch, noted, n_touched)
        _recount((a, b), new, scratch, n_touched, pairs, sizes)
        _enter_new(new, scratch, noted, n_touched, pairs, arena, heap, sizes)
    return _DONE
