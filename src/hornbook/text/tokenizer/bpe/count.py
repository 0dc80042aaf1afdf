"""How often each pre-token occurs: all that training byte-level BPE needs to know of the text."""

from collections.abc import Sequence

import numpy as np

from hornbook.kernels.compiled import GOLDEN, MIX_FIRST, borrowed, compiled, inlined, load64
from hornbook.kernels.packed import pack
from hornbook.text.tokenizer.bpe.split import character_tables, word_end
from hornbook.text.tokenizer.pieces import LONGEST_WORD

_SLACK = 16
_ALL = np.uint64(2**64 - 1)
_HALF = np.uint64(32)


class WordCounts:
    """The different pre-tokens of at least two bytes (others have no pairs), and their counts.

    Memory is that of the different words: their bytes, 24 bytes beside, and 32 for the table that finds them.
    """

    def __init__(self, digits: int, capacity: int = 2**16) -> None:
        """`digits`: of the regex that splits (`tables.STYLES`); `capacity`: words before the tables grow."""
        self._splitting = digits, *character_tables()
        self._table = np.zeros(4 * capacity, np.uint64)
        self._hashes, self._counts = np.empty(capacity, np.uint64), np.zeros(capacity, np.int64)
        self._starts, self._bytes = np.zeros(capacity + 1, np.int64), np.zeros(8 * capacity + _SLACK, np.uint8)
        self._size = 0

    def add(self, texts: Sequence[str]) -> None:
        """Count the pre-tokens of some texts."""
        data, bounds = pack(texts)
        text, offset, word_stop = 0, 0, 0
        while True:
            text, offset, word_stop, self._size, needed = _count(
                *(data, bounds, text, offset, word_stop, *self._splitting, self._table),
                *(self._hashes, self._counts, self._starts, self._bytes, self._size),
            )
            if not needed:
                return
            self._grow(needed)

    @property
    def words(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(uint8 [bytes], int64 [words + 1], int64 [words]): all words in a row, where each begins, their counts."""
        starts = self._starts[: self._size + 1]
        return self._bytes[: starts[-1]], starts, self._counts[: self._size]

    def _grow(self, needed: int) -> None:
        if 2 * self._size >= len(self._counts):
            self._hashes, self._counts, self._starts = (
                np.concatenate([part, np.zeros(len(self._counts), part.dtype)])
                for part in (self._hashes, self._counts, self._starts)
            )
            self._table = np.zeros(2 * len(self._table), np.uint64)
            _fill(self._table, self._hashes, self._size)
        if self._starts[self._size] + needed + _SLACK > len(self._bytes):
            self._bytes = np.concatenate([self._bytes, np.zeros(len(self._bytes) + needed, np.uint8)])


@inlined
def _lowest(value, count):
    """The lowest 1 to 8 bytes of a uint64."""
    return value & (_ALL >> np.uint64(64 - 8 * count))


@inlined
def _hash(data, start, end):
    value = np.uint64(end - start) * GOLDEN
    offset = start
    while end - offset > 8:
        value = (value ^ load64(data, offset)) * MIX_FIRST
        value ^= value >> _HALF
        offset += 8
    value = (value ^ _lowest(load64(data, offset), end - offset)) * MIX_FIRST
    return (value ^ value >> _HALF) * GOLDEN


@inlined
def _same(data, start, end, others, other_start):
    """Whether data[start:end] stands in `others` from `other_start` on."""
    while end - start > 8:
        if load64(data, start) != load64(others, other_start):
            return False
        start += 8
        other_start += 8
    return _lowest(load64(data, start) ^ load64(others, other_start), end - start) == 0


@compiled
def _fill(table, hashes, size):
    """Enter words into an empty table: pairs of hash and number + 1, open addressing by the hash's low bits."""
    for number in range(size):
        slot = np.int64(hashes[number] & np.uint64(len(table) // 2 - 1))
        while table[2 * slot + 1]:
            slot = (slot + 1) & (len(table) // 2 - 1)
        table[2 * slot], table[2 * slot + 1] = hashes[number], np.uint64(number + 1)


@compiled
def _count(data, bounds, text, offset, word_stop, digits, pages, kinds, table, hashes, counts, starts, words, size):
    """Count packed texts from data[offset] in text `text` on; the word there ends at `word_stop` if that is later.

    Returns (text, offset, word_stop, size, needed): where to go on, and with how many words, once there is room for a
    word of `needed` bytes; all is counted when that is 0. A word is counted in parts of at most LONGEST_WORD bytes.
    """
    data, pages, kinds, table = borrowed(data), borrowed(pages), borrowed(kinds), borrowed(table)
    hashes, counts, starts, words = borrowed(hashes), borrowed(counts), borrowed(starts), borrowed(words)
    mask = len(table) // 2 - 1
    while text < len(bounds) - 1:
        end = bounds[text + 1] - 1  # a line feed stands between texts
        while offset < end:
            if offset >= word_stop:
                word_stop = word_end(data, offset, end, digits, pages, kinds)
            stop = min(word_stop, offset + LONGEST_WORD)
            length = stop - offset
            if length > 1:
                hashed = _hash(data, offset, stop)
                slot, number = np.int64(hashed & np.uint64(mask)), np.int64(0)
                while True:
                    number = np.int64(table[2 * slot + 1]) - 1
                    if number < 0:
                        break
                    alike = table[2 * slot] == hashed and starts[number + 1] - starts[number] == length
                    if alike and _same(data, offset, stop, words, starts[number]):
                        break
                    slot = (slot + 1) & mask
                if number < 0:
                    new_start = starts[size]
                    if 2 * size >= len(counts) or new_start + length + _SLACK > len(words):
                        return text, offset, word_stop, size, length
                    number, size = size, size + 1
                    table[2 * slot], table[2 * slot + 1] = hashed, np.uint64(size)
                    hashes[number], counts[number], starts[size] = hashed, 0, new_start + length
                    for i in range(length):
                        words[new_start + i] = data[offset + i]
                counts[number] += 1
            offset = stop
        text += 1
        offset = end + 1
    return text, offset, word_stop, size, 0
