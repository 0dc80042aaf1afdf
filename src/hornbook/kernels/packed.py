"""Texts of a batch in one array of bytes, and hashes of its bytes, words and windows of words."""

from collections.abc import Iterable

import numpy as np

from hornbook.kernels.compiled import GOLDEN, MIX_FIRST, compiled, load64, mix

_ALL = np.uint64(2**64 - 1)


def pack(texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """(uint8 [bytes + 16], int64 [texts + 1]): UTF-8 of texts with a line feed after each, and where each begins.

    The last 16 bytes are zeros, so that kernels can read beyond the end of a word.
    """
    parts = [text.encode() for text in texts]
    bounds = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) + 1 for part in parts], out=bounds[1:])
    assert bounds[-1] < 2**32, "offsets in a batch are kept in 32 bits"
    return np.frombuffer(b"\n".join([*parts, bytes(16)]), np.uint8), bounds


@compiled
def _lowest(value, count):
    """The lowest 0 to 8 bytes of a uint64, in two shifts because one by 64 is undefined."""
    half = np.uint64(32 - 4 * count)
    return value & ((_ALL >> half) >> half)


@compiled
def hash_bytes(data, start, end):
    """A 64-bit hash of data[start:end] in packed texts, never 0; words take no branch that depends on their length."""
    value = np.uint64(end - start) * GOLDEN
    position = start
    while end - position > 16:
        value = (value ^ load64(data, position)) * MIX_FIRST
        value ^= value >> np.uint64(32)
        position += 8
    value = (value ^ _lowest(load64(data, position), min(end - position, 8))) * MIX_FIRST
    value ^= value >> np.uint64(32)
    value = (value ^ _lowest(load64(data, position + 8), max(end - position - 8, 0))) * MIX_FIRST
    return (value ^ (value >> np.uint64(32))) | np.uint64(1)


@compiled
def hash_words(data, starts, ends):
    """uint64 [words]: a hash of each word's bytes."""
    hashes = np.empty(len(starts), np.uint64)
    for i in range(len(starts)):
        hashes[i] = hash_bytes(data, starts[i], ends[i])
    return hashes


@compiled
def hash_windows(words, width, windows):
    """Fill `windows` with a hash of words[i : i + width] for each i: a polynomial, rolled on in constant time."""
    power = np.uint64(1)
    value = np.uint64(0)
    for i in range(width - 1):
        value = value * GOLDEN + words[i]
        power *= GOLDEN
    for i in range(len(windows)):
        value = value * GOLDEN + words[i + width - 1]
        windows[i] = mix(value) | np.uint64(1)
        value -= power * words[i]
