"""Digests of what a run draws, for tests that pin them as literals.

A checkpoint holds no sample order, no mask and no first weight: a resumed run draws them again. So these must be the
same in every version; a test that fails here says that runs would go on with other data, and the literal may change
only together with the formats that a resume refuses.
"""

import json
from collections.abc import Iterable

import numpy as np
import torch
import xxhash
from torch import Tensor

_MULTIPLIER = 2654435761


def digest(parts: Iterable[np.ndarray | Tensor | object]) -> str:
    """xxh3_64 (hex) of arrays and tensors by type, shape and bytes (little endian); of anything else as JSON."""
    hasher = xxhash.xxh3_64()
    for part in parts:
        array = part.numpy() if isinstance(part, Tensor) else part
        if isinstance(array, np.ndarray):
            array = np.ascontiguousarray(array)
            hasher.update(f"{array.dtype.str}{array.shape}".encode())
            hasher.update(array.tobytes())
        else:
            hasher.update(json.dumps(array, default=int).encode())
    return hasher.hexdigest()


def checksum(values: Iterable[Tensor]) -> float:
    """Sum of all values, each times a fixed number in [-1, 1) that its place gives, in float64.

    For values whose last bits depend on the instruction set: they move it by some 1e-7 of its size, where another draw
    moves all of it. Rounding before a digest is no way out, for of many values one always lies near an edge.
    """
    total, first = 0.0, 1
    for value in values:
        flat = value.double().flatten()
        places = torch.arange(first, first + flat.numel()) * _MULTIPLIER % 2**32
        total += float((flat * (places.double() * 2.0**-31 - 1)).sum())
        first += flat.numel()
    return total
