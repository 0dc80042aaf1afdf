"""N-grams of test items in texts: a hash table, and two searches in linear time."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hornbook.kernels.compiled import compiled
from hornbook.kernels.packed import hash_windows

TEMPLATE_ITEMS = 32
"""An n-gram in more items is taken for the template of a test set, and ignored."""

_SHIFT = np.uint64(16)


class NgramTable(NamedTuple):
    """N-grams of one width, and the items that contain each."""

    width: int
    slots: np.ndarray
    """uint64 [2**k]: hashes, by open addressing; 0 is a free slot."""
    ids: np.ndarray
    """int64 [2**k]: the number of the n-gram in each slot."""
    firsts: np.ndarray
    """int64 [n-grams + 1]: the first entry of each n-gram in `items`."""
    items: np.ndarray
    """int64: numbers of items, n-gram by n-gram."""
    sizes: np.ndarray
    """int64 [all items]: number of different n-grams of the table in each."""


def ngram_table(width: int, words: Sequence[np.ndarray], count: int, numbers: Sequence[int]) -> NgramTable:
    """The table of items, given by the hashes of their words and their numbers among `count` items."""
    grams = [np.unique(_keys(width, each)) for each in words]
    keys = np.concatenate([np.zeros(0, np.uint64), *grams])
    items = np.repeat(np.array(numbers, np.int64), [len(each) for each in grams])
    keys, number, spread = np.unique(keys, return_inverse=True, return_counts=True)
    rare = spread <= TEMPLATE_ITEMS
    order = np.argsort(number, kind="stable")
    order = order[rare[number[order]]]
    keys, spread, items = keys[rare], spread[rare], items[order]
    slots = np.zeros(1 << max(2 * len(keys), 1).bit_length(), np.uint64)
    ids = np.zeros(len(slots), np.int64)
    _insert(keys, slots, ids)
    firsts = np.concatenate([[0], np.cumsum(spread)]).astype(np.int64)
    return NgramTable(width, slots, ids, firsts, items, np.bincount(items, minlength=count))


@compiled
def _keys(width, words):
    """uint64 [windows]: the hash of each n-gram of a text."""
    keys = np.empty(max(len(words) - width + 1, 0), np.uint64)
    hash_windows(words, width, keys)
    return keys


@compiled
def _slot(key, slots):
    """The slot of a key, or the free slot for it; at least half of the slots are free."""
    mask = np.uint64(slots.size - 1)
    slot = (key >> _SHIFT) & mask
    while slots[slot] != 0 and slots[slot] != key:
        slot = (slot + np.uint64(1)) & mask
    return slot


@compiled
def _insert(keys, slots, ids):
    for i in range(len(keys)):
        slot = _slot(keys[i], slots)
        slots[slot], ids[slot] = keys[i], i


@compiled
def count_hits(table, words, firsts, hits, item):
    """Add to `hits` [texts] the number of windows in the table; where `item` is -1, set it to the first one's item."""
    width, slots, ids, gram_firsts, items, _ = table
    for text in range(len(hits)):
        keys = _keys(width, words[firsts[text] : firsts[text + 1]])
        for key in keys:
            slot = _slot(key, slots)
            if slots[slot]:
                hits[text] += 1
                if item[text] < 0:
                    item[text] = items[gram_firsts[ids[slot]]]


@compiled
def mark_items(table, words, firsts, marked):
    """Set `marked` [items] of every item that has an n-gram of the table in common with a text."""
    width, slots, ids, gram_firsts, items, _ = table
    for text in range(len(firsts) - 1):
        for key in _keys(width, words[firsts[text] : firsts[text + 1]]):
            slot = _slot(key, slots)
            if slots[slot]:
                gram = ids[slot]
                for each in items[gram_firsts[gram] : gram_firsts[gram + 1]]:
                    marked[each] = True


def largest_share(
    table: NgramTable, words: np.ndarray, firsts: np.ndarray, shares: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """(float64, int64) [texts]: the largest share of an item's n-grams that occur in the text; the item or -1.

    `shares`, float64 [items], is raised to the share of each item that occurs in one text.
    """
    shares = np.ones(len(table.sizes)) if shares is None else shares
    share, item = np.zeros(len(firsts) - 1), np.full(len(firsts) - 1, -1, np.int64)
    grams, seen = np.full(len(table.firsts), -1, np.int64), np.full(len(table.sizes), -1, np.int64)
    found = np.zeros(len(table.sizes), np.int64)
    _largest_share(table, words, firsts, grams, seen, found, share, item, shares)
    return share, item


@compiled
def _largest_share(table, words, firsts, grams, seen, found, share, item, shares):
    """`grams` and `seen` hold the last text with an n-gram or an item; `found` counts the item's n-grams in it."""
    width, slots, ids, gram_firsts, items, sizes = table
    for text in range(len(share)):
        keys = _keys(width, words[firsts[text] : firsts[text + 1]])
        for key in keys:
            slot = _slot(key, slots)
            if slots[slot] == 0 or grams[ids[slot]] == text:
                continue
            gram = ids[slot]
            grams[gram] = text
            for each in items[gram_firsts[gram] : gram_firsts[gram + 1]]:
                found[each] = found[each] + 1 if seen[each] == text else 1
                seen[each] = text
                if found[each] > share[text] * sizes[each]:
                    share[text], item[text] = found[each] / sizes[each], each
                if found[each] > shares[each] * sizes[each]:
                    shares[each] = found[each] / sizes[each]
