"""Byte-level BPE encoding: the same tokens as the tokenizers library, at some forty megabytes a second.

Most words of a text have been seen before, so a small cache from words of up to 23 bytes to up to three tokens answers
most of them; its keys are the words themselves, never hashes of them. Other words are merged pair by pair, the
lowest rank first and, of equals, the leftmost; words over 64 bytes with a heap, so that no text takes quadratic time.
"""

import itertools
import threading
from collections.abc import Sequence

import numpy as np

from hornbook.text.bpe_split import character_tables, word_end
from hornbook.text.bpe_tables import TOKEN_BITS, Merges, pair_table
from hornbook.text.compiled import borrowed, compiled, inlined, load64
from hornbook.text.refinery.packed import pack

_SHORT = 64
"""Bytes up to which the best pair is found by looking at all of them."""
_KEY_BYTES = 23
_CACHE_BITS = 15
"""The cache has 2^15 sets of two entries of 32 bytes."""
_ROOM = 2**18
"""Ids after which the kernel hands over what it has."""

_ALL = np.uint64(2**64 - 1)
_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
_NONE = np.uint64(0)
_BYTE = np.uint64(8)
_BITS = np.uint64(TOKEN_BITS)
_NO_TOKEN = np.uint64(2**TOKEN_BITS - 1)
_ONE = np.uint64(1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_OTHER = np.uint64(0xBF58476D1CE4E5B9)


class Encoder:
    """Encodes texts by the merges of one tokenizer; safe to call from several threads."""

    def __init__(self, merges: Merges) -> None:
        table, shift = pair_table(merges.triples)
        self._tables = (merges.style.digits, *character_tables(), np.array(merges.byte_ids, np.int64))
        self._pairs = _byte_pairs(merges), table, np.uint64(shift)
        cache = np.zeros(8 << _CACHE_BITS, np.uint64)
        self._scratch = cache, np.empty(_SHORT + 1, np.int64), np.empty(_SHORT + 1, np.uint64)
        self._lock = threading.Lock()  # the scratch is shared

    def encode(self, texts: Sequence[str], room: int = _ROOM) -> list[np.ndarray]:
        """The tokens of each text, uint32 [tokens]; `room`: how many are held at once beside the result."""
        data, bounds = pack(texts)
        parts: list[list[np.ndarray]] = [[] for _ in texts]
        found, ends = np.empty(room, np.uint32), np.empty(len(texts), np.int64)
        text, place = 0, 0
        while text < len(texts):
            first = text
            with self._lock:
                text, place, used = _encode_texts(
                    data, bounds, text, place, *self._tables, *self._pairs, *self._scratch, found, ends
                )
            cuts = [0, *ends[first:text].tolist(), used]
            for number, (start, end) in enumerate(itertools.pairwise(cuts), first):
                if end > start:
                    parts[number].append(found[start:end].copy())
            if text == first and not used:  # a word longer than all the room
                found = np.empty(2 * len(found), np.uint32)
        return [np.concatenate(part) if part else np.empty(0, np.uint32) for part in parts]


def _byte_pairs(merges: Merges) -> np.ndarray:
    """uint64 [2^16]: rank << 32 | merge of two bytes, all ones where they do not merge."""
    found = np.full(2**16, _ALL)
    bytes_of = {token: byte for byte, token in enumerate(merges.byte_ids)}
    for rank, (left, right, merged) in enumerate(merges.triples):
        if left in bytes_of and right in bytes_of:
            found[bytes_of[left] << 8 | bytes_of[right]] = rank << 32 | merged
    return found


@inlined
def _find_pair(left, right, pairs, shift):
    """rank << 32 | merge of two tokens; all ones where they do not merge."""
    key = np.uint64(left) << _HALF | np.uint64(right)
    slot = np.int64(key * _GOLDEN >> shift)
    key += _ONE
    while True:
        found = pairs[2 * slot]
        if found == key:
            return pairs[2 * slot + 1]
        if found == 0:
            return _ALL
        slot = (slot + 1) & (len(pairs) // 2 - 1)


@inlined
def _merge_short(data, start, end, byte_ids, byte_pairs, pairs, shift, ids, ranks):
    """Merge one word in place of `ids` (int64) by looking at all pairs; returns how many tokens are left."""
    count = end - start
    for i in range(count):
        ids[i] = byte_ids[data[start + i]]
    for i in range(count - 1):
        ranks[i] = byte_pairs[np.int64(data[start + i]) << 8 | data[start + i + 1]]
    while count > 1:
        best, at = _ALL, 0
        for i in range(count - 1):
            if ranks[i] < best:
                best, at = ranks[i], i
        if best == _ALL:
            break
        ids[at] = np.int64(best & _LOW)
        count -= 1
        for i in range(at + 1, count):
            ids[i] = ids[i + 1]
            ranks[i - 1] = ranks[i]
        if at > 0:
            ranks[at - 1] = _find_pair(ids[at - 1], ids[at], pairs, shift)
        if at < count - 1:
            ranks[at] = _find_pair(ids[at], ids[at + 1], pairs, shift)
    return count


@compiled
def _sink(heap, place, size):
    """Move heap[place] down until no child is less."""
    value = heap[place]
    child = 2 * place + 1
    while child < size:
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[place] = heap[child]
        place, child = child, 2 * child + 1
    heap[place] = value


@compiled
def _rise(heap, place):
    """Move heap[place] up until its parent is not greater."""
    value = heap[place]
    while place > 0 and heap[(place - 1) // 2] > value:
        heap[place] = heap[(place - 1) // 2]
        place = (place - 1) // 2
    heap[place] = value


@compiled
def _merge_long(data, start, end, byte_ids, pairs, shift, found, used):
    """Merge one long word; writes its tokens to `found` from `used` on and returns the place behind them.

    The heap holds rank << 32 | place of each pair, also of pairs that are no more: those have another rank now.
    Every merge takes one token away and adds at most two pairs, so 3 n entries are enough.
    """
    count = end - start
    ids, following, before = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    ranks, heap, size = np.full(count, _ALL), np.empty(3 * count, np.uint64), 0
    for i in range(count):
        ids[i], following[i], before[i] = byte_ids[data[start + i]], i + 1, i - 1
    for i in range(count - 1):
        ranks[i] = _find_pair(ids[i], ids[i + 1], pairs, shift)
        if ranks[i] != _ALL:
            heap[size] = (ranks[i] & ~_LOW) | np.uint64(i)
            size += 1
    for i in range(size // 2 - 1, -1, -1):
        _sink(heap, i, size)
    while size:
        top = heap[0]
        size -= 1
        heap[0] = heap[size]
        _sink(heap, 0, size)
        at = np.int64(top & _LOW)
        if ranks[at] == _ALL or ranks[at] >> _HALF != top >> _HALF:
            continue
        gone = following[at]
        ids[at], following[at], ranks[gone] = np.int64(ranks[at] & _LOW), following[gone], _ALL
        if following[at] < count:
            before[following[at]] = at
        for left in (before[at], at):
            right = following[left] if left >= 0 else count
            if left >= 0:
                ranks[left] = _find_pair(ids[left], ids[right], pairs, shift) if right < count else _ALL
            if left >= 0 and ranks[left] != _ALL:
                heap[size] = (ranks[left] & ~_LOW) | np.uint64(left)
                _rise(heap, size)
                size += 1
    at = 0
    while at < count:
        found[used] = ids[at]
        used, at = used + 1, following[at]
    return used


@inlined
def _key(data, start, length):
    """A word of 1 to 23 bytes as three uint64: its bytes, zeros, its length."""
    low, middle, high = load64(data, start), _NONE, _NONE
    if length < 8:
        low &= _ALL >> (_BYTE * np.uint64(8 - length))
    elif length > 8:
        middle = load64(data, start + 8)
        if length < 16:
            middle &= _ALL >> (_BYTE * np.uint64(16 - length))
        elif length > 16:
            high = load64(data, start + 16) & (_ALL >> (_BYTE * np.uint64(24 - length)))
    return low, middle, high | np.uint64(length) << np.uint64(56)


@inlined
def _slot(low, middle, high):
    """Where the cache's set of two entries for a key begins."""
    mixed = ((low ^ high) * _GOLDEN ^ middle) * _OTHER
    return 8 * np.int64((mixed ^ mixed >> _HALF) * _GOLDEN >> np.uint64(64 - _CACHE_BITS))


@inlined
def _remember(cache, slot, low, middle, high, ids, count):
    """Put a word of up to three tokens first in its set; what was first is second now, what was second is gone."""
    for i in range(slot, slot + 4):
        cache[i + 4] = cache[i]
    second = np.uint64(ids[1]) if count > 1 else _NO_TOKEN
    third = np.uint64(ids[2]) if count > 2 else _NO_TOKEN
    cache[slot], cache[slot + 1], cache[slot + 2] = low, middle, high
    cache[slot + 3] = (third << _BITS | second) << _BITS | np.uint64(ids[0])


@inlined
def _write_cached(tokens, found, used):
    """Write one to three tokens of a cache entry; three places are written, however many count."""
    second, third = tokens >> _BITS & _NO_TOKEN, tokens >> (_BITS + _BITS)
    found[used], found[used + 1], found[used + 2] = tokens & _NO_TOKEN, second, third
    return used + 1 + (second != _NO_TOKEN) + (third != _NO_TOKEN)


@inlined
def _encode_word(data, start, end, byte_ids, byte_pairs, pairs, shift, cache, ids, ranks, found, used):
    """Write the tokens of one word to `found` from `used` on; returns the place behind them."""
    length = end - start
    if length > _SHORT:
        return _merge_long(data, start, end, byte_ids, pairs, shift, found, used)
    low, middle, high, slot = _NONE, _NONE, _NONE, 0
    if length <= _KEY_BYTES:
        low, middle, high = _key(data, start, length)
        slot = _slot(low, middle, high)
        if cache[slot] == low and cache[slot + 1] == middle and cache[slot + 2] == high:
            return _write_cached(cache[slot + 3], found, used)
        if cache[slot + 4] == low and cache[slot + 5] == middle and cache[slot + 6] == high:
            return _write_cached(cache[slot + 7], found, used)
    count = _merge_short(data, start, end, byte_ids, byte_pairs, pairs, shift, ids, ranks)
    for i in range(count):
        found[used + i] = ids[i]
    if count <= 3 and length <= _KEY_BYTES:
        _remember(cache, slot, low, middle, high, ids, count)
    return used + count


@compiled
def _encode_texts(
    data, bounds, text, place, digits, pages, kinds, byte_ids, byte_pairs, pairs, shift, cache, ids, ranks, found, ends
):
    """Encode packed texts from data[place] in text number `text` on, until all are done or `found` is full.

    Returns (text, place, used): where to go on, and how many ids were written; `ends` has the end of each text that
    was finished. A word's tokens are written while there is room for as many as it has bytes (and at least three).
    """
    data, pages, kinds, cache = borrowed(data), borrowed(pages), borrowed(kinds), borrowed(cache)
    byte_ids, byte_pairs, pairs = borrowed(byte_ids), borrowed(byte_pairs), borrowed(pairs)
    found, ids, ranks = borrowed(found), borrowed(ids), borrowed(ranks)
    used = 0
    while text < len(bounds) - 1:
        end = bounds[text + 1] - 1  # a line feed stands between texts
        while place < end:
            stop = word_end(data, place, end, digits, pages, kinds)
            if used + max(stop - place, 3) > len(found):
                return text, place, used
            used = _encode_word(data, place, stop, byte_ids, byte_pairs, pairs, shift, cache, ids, ranks, found, used)
            place = stop
        ends[text] = used
        text += 1
        place = end + 1
    return text, place, used
