"""Attention cut into tiles of queries, each with the keys that any of its queries sees.

A tile of 128 queries is multiplied only with the keys it can see: under causal order half the products and half the
softmax of the full square, with documents or a window far less. A tile's keys begin and end at multiples of 64, so
that few different shapes occur and their compiled products are reused; the softmax hides keys outside each query's own
interval.
"""

from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

import torch
from jaxtyping import Int
from torch import Tensor

from hornbook.model.attention.mask import AttentionMask, Interval
from hornbook.model.config.tiling import KEY_STEP, QUERIES, WIDE


@dataclass(frozen=True)
class QueryTile:
    """Queries [first, last) of some rows of the batch, and the keys [begin, end) that any of them sees."""

    rows: slice
    first: int
    last: int
    begin: int
    end: int
    position: int
    """Position of the first query among the keys."""
    starts: Int[Tensor, "rows queries"]
    """First key each query sees, counted from `begin`; one row where all rows agree."""
    ends: Int[Tensor, "rows queries"]
    """One past the last key each query sees, counted from `begin`."""


@dataclass(frozen=True)
class TilePlan:
    """Tiles that cover all queries of a batch once."""

    tiles: list[QueryTile]
    pairs: int
    """Pairs of query and key over all rows, one key of each query not counted."""


@lru_cache(maxsize=8)
def plan_tiles(queries: int, keys: int, batch: int, mask: AttentionMask) -> TilePlan:
    """The tiles of a batch; all layers of a forward pass share one plan."""
    alike = mask.uniform
    intervals = [mask.intervals(queries, keys, row) for row in range(1 if alike else batch)]
    step = WIDE if mask.kind != "causal" and mask.window is None and mask.unbroken else QUERIES
    tiles = []
    for first in range(0, queries, step):
        last = min(first + step, queries)
        parts = [(starts[first:last], ends[first:last]) for starts, ends in intervals]
        for (begin, end), numbers in groupby(range(len(parts)), lambda row, parts=parts: _span(parts[row], keys)):
            rows = list(numbers)
            own = [[each - begin for each in parts[row]] for row in rows]
            starts, ends = (torch.stack(each).clamp(0, end - begin) for each in zip(*own, strict=True))
            where = slice(0, batch) if alike else slice(rows[0], rows[-1] + 1)
            tiles.append(QueryTile(where, first, last, begin, end, first + keys - queries, starts, ends))
    pairs = sum(int((ends - starts - 1).clamp(min=0).sum()) for starts, ends in intervals)
    return TilePlan(tiles, pairs * (batch if alike else 1))


def _span(part: Interval, keys: int) -> tuple[int, int]:
    """First key that any of the queries sees and one past the last, widened to multiples of `KEY_STEP`."""
    starts, ends = part
    sees = ends > starts
    if not sees.any():
        return 0, min(KEY_STEP, keys)
    begin, end = int(starts[sees].min()), int(ends[sees].max())
    return begin // KEY_STEP * KEY_STEP, min(-(-end // KEY_STEP) * KEY_STEP, keys)
