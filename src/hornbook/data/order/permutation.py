"""A keyed permutation of range(n) that can be evaluated at any point without being stored.

A Feistel network (Luby and Rackoff 1988) permutes the smallest power-of-two domain that holds n; values
that fall outside range(n) are permuted again until they fall inside (cycle walking, Black and Rogaway 2002),
which keeps it a bijection. The two halves may differ by a bit, so the domain is smaller than 2n and a value
takes fewer than two rounds of walking on average. Round function: the finaliser of SplitMix64 (Steele et al. 2014).
"""

import numpy as np
import xxhash
from jaxtyping import Int64

from hornbook.kernels.compiled import GOLDEN, compiled, mix

ROUNDS = 8
_ONE = np.uint64(1)


def key_of(*parts: object) -> int:
    """64-bit key of a tuple of names and numbers."""
    return xxhash.xxh3_64_intdigest("\x1f".join(str(part) for part in parts).encode())


@compiled
def permuted(index, size, key):
    """Image of `index` under the permutation of range(size) named by `key` (a uint64)."""
    bits = np.uint64(0)
    while (_ONE << bits) < np.uint64(size):
        bits += _ONE
    low = bits >> _ONE
    low_mask = (_ONE << low) - _ONE
    high_mask = (_ONE << (bits - low)) - _ONE
    value = np.uint64(index)
    while True:
        high, rest = value >> low, value & low_mask
        round_key = key
        for _ in range(ROUNDS // 2):
            round_key += GOLDEN
            high ^= mix(rest + round_key) & high_mask
            round_key += GOLDEN
            rest ^= mix(high + round_key) & low_mask
        value = (high << low) | rest
        if value < np.uint64(size):
            return np.int64(value)


@compiled
def _permute_all(indices: np.ndarray, size: int, key: np.uint64, out: np.ndarray) -> None:
    for i in range(indices.size):
        out[i] = permuted(indices[i], size, key)


def permute(indices: Int64[np.ndarray, " n"], size: int, key: int) -> Int64[np.ndarray, " n"]:
    """Images of `indices` (each in range(size)) under the permutation of range(size) named by the 64-bit `key`."""
    out = np.empty(len(indices), np.int64)
    _permute_all(indices, size, np.uint64(key), out)
    return out
