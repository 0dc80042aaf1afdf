"""Sizes of the tiles in which attention is computed on a CPU (`hornbook.model.attention.tiles`), as arithmetic."""

from functools import cache

from hornbook.model.config.part import Model

QUERIES = 128
"""Queries per tile."""
WIDE = 512
"""Queries per tile where all see all keys of their row, so that small tiles would save nothing."""
KEY_STEP = 64
"""A tile's first key is a multiple of this, and one past its last too, unless the keys end before."""
KEPT = 7
"""Probabilities are kept for backward if they are at most this many times as large as the queries."""


def kept_pairs(sequence: int, model: Model, window: int | None, head_dim: int) -> int:
    """Pairs of query and key of one head and row whose probabilities are kept for backward: of all tiles, or none.

    head_dim: width of a query. The row is one document of more than a few queries
    (`hornbook.model.attention.attend.FEW_QUERIES`).
    """
    return _kept_pairs(sequence, model.kind == "encoder", window, head_dim)


@cache
def _kept_pairs(sequence: int, bidirectional: bool, window: int | None, head_dim: int) -> int:
    seen = [_interval(query, sequence, window, bidirectional) for query in range(sequence)]
    if sum(end - start - 1 for start, end in seen) > KEPT * sequence * head_dim:
        return 0
    step, pairs = (WIDE if bidirectional and window is None else QUERIES), 0
    for first in range(0, sequence, step):
        tile = seen[first : first + step]
        start = min(each[0] for each in tile) // KEY_STEP * KEY_STEP
        end = -(-max(each[1] for each in tile) // KEY_STEP) * KEY_STEP
        pairs += len(tile) * (min(end, sequence) - start)
    return pairs


def kept_pairs_across(queries: int, keys: int, head_dim: int) -> int:
    """As `kept_pairs`, of queries that see all keys of another sequence."""
    return queries * keys if keys - 1 <= KEPT * head_dim else 0


def _interval(query: int, sequence: int, window: int | None, bidirectional: bool) -> tuple[int, int]:
    """First key that a query sees, and one past the last."""
    if not bidirectional:
        return max(query + 1 - (window or sequence), 0), query + 1
    half = sequence if window is None else window // 2
    return max(query - half, 0), min(query + half + 1, sequence)
