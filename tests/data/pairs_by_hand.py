"""Sources and targets of texts that a test makes up."""

import numpy as np

from hornbook.data.objectives.infill import poisson_bounds
from hornbook.data.objectives.pairs import NoiseTable, Pairs, Roles, write_pairs

END, PAD, MASK, MODE, START, FIRST_SENTINEL = 1, 0, 4000, 4001, 4002, 5000


def tables(rate: float, mean: float, *, infills: bool = False, mode: int = -1, permute: bool = False) -> tuple:
    """One part as kernels see it; full stops are ids that are multiples of 50; sentinels fall as in T5."""
    columns = ([1.0], [infills], [rate], [float(mean)], [mode], [START], [permute], [poisson_bounds(min(mean, 32.0))])
    stops = np.arange(6000) % 50 == 0
    sentinels = np.arange(FIRST_SENTINEL, FIRST_SENTINEL - 900, -1).astype(np.int32)
    return NoiseTable(*map(np.array, columns)), Roles(sentinels, MASK, -1, END, PAD, stops)


def pairs_of(text: np.ndarray, rows: int, parts: NoiseTable, roles: Roles, seed: int = 0) -> list[tuple[list, list]]:
    """Source and target of `rows` rows that each hold the same text."""
    sizes, none = np.full(rows, len(text)), np.zeros(rows, np.int64)
    keys = np.random.default_rng(seed).integers(0, 2**64, rows, np.uint64)
    made = write_pairs(parts, roles, np.tile(text, rows), np.arange(rows + 1), sizes, none, keys)
    return split(made)


def split(made: Pairs) -> list[tuple[list, list]]:
    """Source and target of each piece."""
    ends = made.lengths.cumsum(1)
    found = []
    for p in range(made.lengths.shape[1]):
        s, t = ends[:, p] - made.lengths[:, p]
        target = made.target[t + p : ends[1, p] + p + 1].tolist()
        assert target[0] == START
        found.append((made.source[s : ends[0, p]].tolist(), target[1:]))
    return found
