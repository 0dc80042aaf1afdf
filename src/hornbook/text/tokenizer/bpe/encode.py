"""Byte-level BPE encoding: the same tokens as the tokenizers library, at some forty megabytes a second.

Most words of a text have been seen before, so a small cache from words of up to 23 bytes to up to three tokens answers
most of them; its keys are the words themselves, never hashes of them. Other words are merged pair by pair, the
lowest rank first and, of equals, the leftmost; words over 64 bytes with a heap, so that no text takes quadratic time.
Where merges are left out by chance, each word is merged anew, with the heap and without the cache.
"""

import itertools
import threading
from collections.abc import Sequence

import numpy as np

from hornbook.kernels.compiled import GOLDEN, MIX_FIRST, borrowed, compiled, inlined, load64
from hornbook.kernels.packed import pack
from hornbook.text.tokenizer.bpe.added import AddedTokens
from hornbook.text.tokenizer.bpe.merge_word import ALL, HALF, LOW, draw, find_pair, merge_by_heap, pair_table
from hornbook.text.tokenizer.bpe.split import character_tables, word_end
from hornbook.text.tokenizer.bpe.tables import TOKEN_BITS, Draws, Merges

_SHORT = 64
"""Bytes up to which the best pair is found by looking at all of them."""
_KEY_BYTES = 23
_CACHE_BITS = 15
"""The cache has 2^15 sets of two entries of 32 bytes."""
_CAPACITY = 2**18
"""Ids after which the kernel hands over what it has."""

_EMPTY = np.empty(0, np.uint32)
_NONE = np.uint64(0)
_BYTE = np.uint64(8)
_BITS = np.uint64(TOKEN_BITS)
_NO_TOKEN = np.uint64(2**TOKEN_BITS - 1)


class Encoder:
    """Encodes texts by the merges of one tokenizer; safe to call from several threads."""

    def __init__(self, merges: Merges) -> None:
        table, shift = pair_table(merges.triples)
        self._splitting = merges.digits, *character_tables()
        self._tables = np.array(merges.byte_ids, np.int64), _byte_pairs(merges), table, np.uint64(shift)
        cache = np.zeros(8 << _CACHE_BITS, np.uint64)
        self._scratch = cache, np.empty(_SHORT + 1, np.int64), np.empty(_SHORT + 1, np.uint64)
        self._lock = threading.Lock()  # the scratch is shared
        self._added = AddedTokens(merges.added)

    def encode(self, texts: Sequence[str], capacity: int = _CAPACITY, draws: Draws | None = None) -> list[np.ndarray]:
        """The tokens of each text, uint32 [tokens]; `capacity`: how many are held at once beside the result.

        `draws` leaves out merges by chance.
        """
        if not self._added:
            return self._encode(texts, capacity, draws)
        cuts = [self._added.cut(text) for text in texts]
        between = [(number, part) for number, parts in enumerate(cuts) for part in parts if isinstance(part, str)]
        chances = None if draws is None else Draws(*(each[[number for number, _ in between]] for each in draws))
        words = iter(self._encode([part for _, part in between], capacity, chances))
        return [
            np.concatenate(
                [_EMPTY, *(next(words) if isinstance(each, str) else np.array([each], np.uint32) for each in parts)]
            )
            for parts in cuts
        ]

    def _encode(self, texts: Sequence[str], capacity: int, draws: Draws | None) -> list[np.ndarray]:
        chances = tuple(np.zeros((2, len(texts)), np.uint64)) if draws is None else tuple(draws)
        data, bounds = pack(texts)
        parts: list[list[np.ndarray]] = [[] for _ in texts]
        out, ends = np.empty(capacity, np.uint32), np.empty(len(texts), np.int64)
        text, offset = 0, 0
        while text < len(texts):
            first = text
            with self._lock:
                text, offset, used = _encode_texts(
                    data, bounds, text, offset, self._splitting, self._tables, self._scratch, chances, out, ends
                )
            cuts = [0, *ends[first:text].tolist(), used]
            for number, (start, end) in enumerate(itertools.pairwise(cuts), first):
                if end > start:
                    parts[number].append(out[start:end].copy())
            if text == first and not used:  # a word longer than all the room
                out = np.empty(2 * len(out), np.uint32)
        return [np.concatenate(part) if part else _EMPTY for part in parts]


def _byte_pairs(merges: Merges) -> np.ndarray:
    """uint64 [2^16]: rank << 32 | merge of two bytes, all ones where they do not merge."""
    pairs = np.full(2**16, ALL)
    bytes_of = {token: byte for byte, token in enumerate(merges.byte_ids)}
    for rank, (left, right, merged) in enumerate(merges.triples):
        if left in bytes_of and right in bytes_of:
            pairs[bytes_of[left] << 8 | bytes_of[right]] = rank << 32 | merged
    return pairs


@inlined
def _merge_short(data, start, end, byte_ids, byte_pairs, pairs, shift, ids, ranks):
    """Merge one word in place, in `ids` (int64), by looking at all pairs; returns how many tokens are left."""
    count = end - start
    for i in range(count):
        ids[i] = byte_ids[data[start + i]]
    for i in range(count - 1):
        ranks[i] = byte_pairs[np.int64(data[start + i]) << 8 | data[start + i + 1]]
    while count > 1:
        best, at = ALL, 0
        for i in range(count - 1):
            if ranks[i] < best:
                best, at = ranks[i], i
        if best == ALL:
            break
        ids[at] = np.int64(best & LOW)
        count -= 1
        for i in range(at + 1, count):
            ids[i] = ids[i + 1]
            ranks[i - 1] = ranks[i]
        if at > 0:
            ranks[at - 1] = find_pair(ids[at - 1], ids[at], pairs, shift)
        if at < count - 1:
            ranks[at] = find_pair(ids[at], ids[at + 1], pairs, shift)
    return count


@inlined
def _key(data, start, length):
    """A word of 1 to 23 bytes as three uint64: its bytes, zeros, its length."""
    low, middle, high = load64(data, start), _NONE, _NONE
    if length < 8:
        low &= ALL >> (_BYTE * np.uint64(8 - length))
    elif length > 8:
        middle = load64(data, start + 8)
        if length < 16:
            middle &= ALL >> (_BYTE * np.uint64(16 - length))
        elif length > 16:
            high = load64(data, start + 16) & (ALL >> (_BYTE * np.uint64(24 - length)))
    return low, middle, high | np.uint64(length) << np.uint64(56)


@inlined
def _slot(low, middle, high):
    """Where the cache's set of two entries for a key begins."""
    mixed = ((low ^ high) * GOLDEN ^ middle) * MIX_FIRST
    return 8 * np.int64((mixed ^ mixed >> HALF) * GOLDEN >> np.uint64(64 - _CACHE_BITS))


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
def _write_cached(tokens, out, used):
    """Write one to three tokens of a cache entry; three are always written, and the end says how many count."""
    second, third = tokens >> _BITS & _NO_TOKEN, tokens >> (_BITS + _BITS)
    out[used], out[used + 1], out[used + 2] = tokens & _NO_TOKEN, second, third
    return used + 1 + (second != _NO_TOKEN) + (third != _NO_TOKEN)


@inlined
def _encode_short(data, start, end, byte_ids, byte_pairs, pairs, shift, cache, ids, ranks, out, used):
    """Write the tokens of a word of at most `_SHORT` bytes to out[used:]; returns the end."""
    length = end - start
    low, middle, high, slot = _NONE, _NONE, _NONE, 0
    if length <= _KEY_BYTES:
        low, middle, high = _key(data, start, length)
        slot = _slot(low, middle, high)
        if cache[slot] == low and cache[slot + 1] == middle and cache[slot + 2] == high:
            return _write_cached(cache[slot + 3], out, used)
        if cache[slot + 4] == low and cache[slot + 5] == middle and cache[slot + 6] == high:
            return _write_cached(cache[slot + 7], out, used)
    count = _merge_short(data, start, end, byte_ids, byte_pairs, pairs, shift, ids, ranks)
    for i in range(count):
        out[used + i] = ids[i]
    if count <= 3 and length <= _KEY_BYTES:
        _remember(cache, slot, low, middle, high, ids, count)
    return used + count


@compiled
def _encode_texts(data, bounds, text, offset, splitting, tables, scratch, draws, out, ends):
    """Encode packed texts from data[offset] in text number `text` on, until all are done or `out` is full.

    Returns (text, offset, used): where to go on, and how many ids were written; `ends` has the end of each text that
    was finished. A word's tokens are written while there is room for as many as it has bytes (and at least three).
    """
    digits, data, pages, kinds = splitting[0], borrowed(data), borrowed(splitting[1]), borrowed(splitting[2])
    byte_ids, byte_pairs, pairs, shift = borrowed(tables[0]), borrowed(tables[1]), borrowed(tables[2]), tables[3]
    cache, ids, ranks = borrowed(scratch[0]), borrowed(scratch[1]), borrowed(scratch[2])
    (keys, limits), out, used = draws, borrowed(out), 0
    while text < len(bounds) - 1:
        end, limit = bounds[text + 1] - 1, limits[text]  # a line feed stands between texts
        while offset < end:
            stop = word_end(data, offset, end, digits, pages, kinds)
            if used + max(stop - offset, 3) > len(out):
                return text, offset, used
            if limit or stop - offset > _SHORT:
                key = draw(keys[text], np.uint64(offset - bounds[text]))
                used = merge_by_heap(data, offset, stop, byte_ids, pairs, shift, key, limit, out, used)
            else:
                used = _encode_short(
                    data, offset, stop, byte_ids, byte_pairs, pairs, shift, cache, ids, ranks, out, used
                )
            offset = stop
        ends[text] = used
        text += 1
        offset = end + 1
    return text, offset, used
