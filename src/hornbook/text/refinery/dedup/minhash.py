"""MinHash signatures in bands (Broder 1997; Leskovec et al., Mining of Massive Datasets, 3.4).

Shingles are hashed to 32 bits; the i-th permutation of those is x -> a_i x + b_i modulo 2**32 with odd a_i. For hashes
that look random, each permutation's least value is that of any shingle with the same probability, whatever a_i, b_i.
"""

import numpy as np

from hornbook.kernels.compiled import MIX_FIRST, compiled, mix
from hornbook.kernels.packed import hash_windows

_TILE = 2048
"""Shingles that fit into the first-level cache while all permutations run over them."""


def permutations(count: int) -> tuple[np.ndarray, np.ndarray]:
    """(multipliers, offsets), uint32 [count]: fixed, because sketches of different runs must agree."""
    rng = np.random.Generator(np.random.PCG64(0x68_6F_72_6E))
    drawn = rng.integers(0, 2**32, (count, 2), dtype=np.uint32)
    return drawn[:, 0] | np.uint32(1), drawn[:, 1].copy()


@compiled
def _take_least(shingles, multipliers, offsets, least):
    """One loop per permutation, which compiles to vector instructions."""
    for i in range(len(least)):
        multiplier, offset, value = multipliers[i], offsets[i], least[i]
        for j in range(len(shingles)):
            value = min(value, np.uint32(multiplier * shingles[j] + offset))
        least[i] = value


@compiled
def _write_keys(least, rows, keys):
    for band in range(len(keys)):
        key = mix(np.uint64(band + 1))
        for row in range(rows):
            key = (key ^ np.uint64(least[band * rows + row])) * MIX_FIRST
            key ^= key >> np.uint64(32)
        keys[band] = mix(key) | np.uint64(1)


@compiled
def band_keys(words, bounds, shingle, rows, multipliers, offsets, keys):
    """Fill `keys` uint64 [documents, bands] from hashes of words; document i has words[bounds[i] : bounds[i + 1]].

    A key is a hash of a band's number and least values; 0 where a document has no word.
    """
    least = np.empty(len(multipliers), np.uint32)
    hashes, shingles = np.empty(_TILE, np.uint64), np.empty(_TILE, np.uint32)
    for document in range(len(keys)):
        start, end = bounds[document], bounds[document + 1]
        if start == end:
            keys[document] = 0
            continue
        width = min(shingle, end - start)
        least[:] = np.uint32(2**32 - 1)
        for place in range(start, end - width + 1, _TILE):
            count = min(_TILE, end - width + 1 - place)
            hash_windows(words[place:], width, hashes[:count])
            for i in range(count):
                shingles[i] = np.uint32(hashes[i] >> np.uint64(32))
            _take_least(shingles[:count], multipliers, offsets, least)
        _write_keys(least, rows, keys[document])
