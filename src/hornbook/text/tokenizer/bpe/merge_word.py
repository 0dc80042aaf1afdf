"""Merging one word with a heap, so that no word takes quadratic time; merges may be left out by chance.

BPE-dropout (Provilkov et al. 2020, algorithm 1): at each step, each merge that is possible is left out with probability
p, and the first of the others is done; where all are left out, the word is finished. Here a draw is a hash of the step
and of the pair's position in the word, so it is made only when the pair reaches the top of the heap.
"""

from collections.abc import Iterable

import numpy as np

from hornbook.kernels.compiled import GOLDEN, compiled, inlined, mix

ALL = np.uint64(2**64 - 1)
LOW = np.uint64(2**32 - 1)
HALF = np.uint64(32)
_ONE = np.uint64(1)


def pair_table(triples: Iterable[tuple[int, int, int]]) -> tuple[np.ndarray, int]:
    """(uint64 [2 * slots], shift): open addressing from a pair of tokens to its rank and its merge.

    A pair (a, b) is looked for from slot ((a << 32 | b) * golden) >> shift on; a slot holds the pair plus one, and
    rank << 32 | merge. Of a pair that stands twice the last counts, as in the library.
    """
    ranked = {(a << 32 | b) + 1: rank << 32 | merged for rank, (a, b, merged) in enumerate(triples)}
    bits = max(4, (2 * len(ranked)).bit_length())
    shift, mask, table = 64 - bits, 2**bits - 1, [0] * 2 ** (bits + 1)
    for key, value in ranked.items():
        slot = ((key - 1) * int(GOLDEN) & 2**64 - 1) >> shift
        while table[2 * slot]:
            slot = slot + 1 & mask
        table[2 * slot], table[2 * slot + 1] = key, value
    return np.array(table, np.uint64), shift


@inlined
def find_pair(left, right, pairs, shift):
    """rank << 32 | merge of two tokens; all ones where they do not merge."""
    key = np.uint64(left) << HALF | np.uint64(right)
    slot = np.int64(key * GOLDEN >> shift)
    key += _ONE
    while True:
        stored = pairs[2 * slot]
        if stored == key:
            return pairs[2 * slot + 1]
        if stored == 0:
            return ALL
        slot = (slot + 1) & (len(pairs) // 2 - 1)


@compiled
def draw(key, count):
    """Number `count` (a uint64) of the uniform 64-bit numbers that a key names (SplitMix64)."""
    return mix(key + GOLDEN * (count + _ONE))


@compiled
def _sink(heap, index, size):
    """Move heap[index] down until no child is less."""
    value = heap[index]
    child = 2 * index + 1
    while child < size:
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[index] = heap[child]
        index, child = child, 2 * child + 1
    heap[index] = value


@compiled
def _rise(heap, index):
    """Move heap[index] up until its parent is not greater."""
    value = heap[index]
    while index > 0 and heap[(index - 1) // 2] > value:
        heap[index] = heap[(index - 1) // 2]
        index = (index - 1) // 2
    heap[index] = value


@inlined
def _fill(heap, ranks):
    """Fill the heap with all pairs that merge; returns how many."""
    size = 0
    for i in range(len(ranks)):
        if ranks[i] != ALL:
            heap[size] = (ranks[i] & ~LOW) | np.uint64(i)
            size += 1
    for i in range(size // 2 - 1, -1, -1):
        _sink(heap, i, size)
    return size


@compiled
def merge_by_heap(data, start, end, byte_ids, pairs, shift, key, limit, out, used):
    """Merge one word; writes its tokens to out[used:] and returns the end.

    A pair is left out of a step where `draw(key, step << 32 | position)` is less than `limit` (both uint64).

    The heap holds rank << 32 | position of each pair, also of pairs that are no more: those have another rank now.
    Every merge takes one token away and adds at most two pairs, so 3 n entries are enough.
    """
    count = end - start
    ids, following, before = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    ranks, heap = np.full(count, ALL), np.empty(3 * count, np.uint64)
    left_out, waiting, step = np.empty(3 * count if limit else 0, np.uint64), 0, np.uint64(0)
    for i in range(count):
        ids[i], following[i], before[i] = byte_ids[data[start + i]], i + 1, i - 1
    for i in range(count - 1):
        ranks[i] = find_pair(ids[i], ids[i + 1], pairs, shift)
    size = _fill(heap, ranks)
    while size:
        top = heap[0]
        size -= 1
        heap[0] = heap[size]
        _sink(heap, 0, size)
        at = np.int64(top & LOW)
        if ranks[at] == ALL or ranks[at] >> HALF != top >> HALF:
            continue
        if limit and draw(key, step << HALF | (top & LOW)) < limit:
            left_out[waiting] = top
            waiting += 1
            continue
        while waiting:
            waiting -= 1
            heap[size] = left_out[waiting]
            _rise(heap, size)
            size += 1
        step += _ONE
        gone = following[at]
        ids[at], following[at], ranks[gone] = np.int64(ranks[at] & LOW), following[gone], ALL
        if following[at] < count:
            before[following[at]] = at
        for left in (before[at], at):
            right = following[left] if left >= 0 else count
            if left >= 0:
                ranks[left] = find_pair(ids[left], ids[right], pairs, shift) if right < count else ALL
            if left >= 0 and ranks[left] != ALL:
                heap[size] = (ranks[left] & ~LOW) | np.uint64(left)
                _rise(heap, size)
                size += 1
    at = 0
    while at < count:
        out[used] = ids[at]
        used, at = used + 1, following[at]
    return used
