"""Texts of a batch in one array of bytes, as kernels read them; hashes of stretches of it."""

from collections.abc import Iterable

import numpy as np

from hornbook.text.compiled import compiled, load64

_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def pack(texts: Iterable[str]) -> tuple[np.ndarray, np.ndarray]:
    """(uint8 [bytes], int64 [texts + 1]): UTF-8 of all texts one after the other, and where each begins."""
    parts = [text.encode() for text in texts]
    bounds = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([len(part) for part in parts], out=bounds[1:])
    return np.frombuffer(b"".join(parts), np.uint8), bounds


@compiled
def mix(value):
    """Scramble 64 bits (a uint64), bijectively: the finaliser of SplitMix64 (Steele et al. 2014)."""
    value = (value ^ (value >> np.uint64(30))) * _FIRST
    value = (value ^ (value >> np.uint64(27))) * _SECOND
    return value ^ (value >> np.uint64(31))


@compiled
def hash_bytes(data, start, end):
    """A 64-bit hash of data[start:end]; 0 stands for nothing and is never given."""
    value = np.uint64(end - start) * _GOLDEN
    place = start
    while place + 8 <= end:
        value = (value ^ load64(data, place)) * _FIRST
        value ^= value >> np.uint64(32)
        place += 8
    rest = np.uint64(0)
    for i in range(end - 1, place - 1, -1):
        rest = (rest << np.uint64(8)) | np.uint64(data[i])
    return mix(value ^ rest) | np.uint64(1)
