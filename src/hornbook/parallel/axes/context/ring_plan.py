"""What a rank computes of attention, tile by tile: its own queries against the keys of each rank.

A tile is a run of queries and a run of keys of neighbouring positions, of which some pairs see each other. Tiles that
nothing sees are left out, so that a causal mask costs half of all pairs, and documents and windows far less.
"""

from dataclasses import dataclass
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from hornbook.model.attention.mask import AttentionMask, RowPart, Spans
from hornbook.model.layers.transfer import to_device

QUERIES = 128
"""Queries of a tile on a CPU, whose caches hold its scores."""
DEVICE_QUERIES = 1024
"""On a device, which wants large products."""


@dataclass(frozen=True, eq=False)
class Tile:
    """Queries and keys as they lie in their ranks' tensors, and where they stand in the row."""

    queries: slice
    keys: slice
    first_query: int
    """Position of the first query among the keys: across stacks too the last query stands at the last key, as in
    `attention.tiles`, by which dropout is keyed."""
    first_key: int
    starts: Int[Tensor, "rows queries"] | None
    """First key each query sees, counted from the tile's first; rows is the batch, or 1. None: all are seen."""
    ends: Int[Tensor, "rows queries"] | None
    """One past the last."""

    @property
    def positions(self) -> tuple[range, range]:
        """Positions of the queries and of the keys."""
        queries, keys = self.queries.stop - self.queries.start, self.keys.stop - self.keys.start
        return range(self.first_query, self.first_query + queries), range(self.first_key, self.first_key + keys)

    def hidden(self) -> Tensor | None:
        """bool [rows, 1, queries, keys]: True where a query does not see a key; None: all see all."""
        if self.starts is None or self.ends is None:
            return None
        key = torch.arange(self.keys.stop - self.keys.start, device=self.starts.device)
        return ((key < self.starts[..., None]) | (key >= self.ends[..., None]))[:, None]


@lru_cache(maxsize=16)
def plan_tiles(mask: AttentionMask, batch: int, device: torch.device) -> list[list[Tile]]:
    """Tiles of this part's queries for the keys of each part; all layers of a forward pass share one plan."""
    part = mask.part
    assert part is not None
    keys = mask.key_part or part
    rows = range(1 if mask.uniform else batch)
    starts, ends = (
        torch.stack(each) for each in zip(*(mask.intervals(part.length, keys.length, row) for row in rows), strict=True)
    )
    runs = _runs(part, QUERIES if device.type == "cpu" else DEVICE_QUERIES)
    offset = keys.length - part.length
    return [_tiles(runs, offset, spans, starts, ends, device) for spans in keys.parts]


def _runs(part: RowPart, most: int) -> list[tuple[int, int, int]]:
    """(index among the part's tokens, first position, one past the last) of up to `most` queries each, unpadded."""
    runs, index = [], 0
    for first, end in part.spans:
        stops = range(first, min(end, part.length), most)
        runs += [(index + at - first, at, min(at + most, end, part.length)) for at in stops]
        index += end - first
    return runs


def _tiles(
    runs: list[tuple[int, int, int]], offset: int, spans: Spans, starts: Tensor, ends: Tensor, device: torch.device
) -> list[Tile]:
    tiles = []
    for index, first, stop in runs:
        low, high = starts[:, first:stop], ends[:, first:stop]
        at = 0
        for begin, end in spans:
            tile = _tile((index, first + offset), (at, begin, end), low, high, device)
            tiles += [] if tile is None else [tile]
            at += end - begin
    return tiles


def _tile(
    query: tuple[int, int], key: tuple[int, int, int], low: Tensor, high: Tensor, device: torch.device
) -> Tile | None:
    """The tile of queries whose intervals are [low, high) and a run of keys, narrowed to what is seen; or None.

    query: index of the first, and its position among the keys. key: index and position of the first, and one past the
    last.
    """
    at, begin, end = key
    low, high = low.clamp(min=begin), high.clamp(max=end)
    sees = low < high
    if not sees.any():
        return None
    first, stop = int(low[sees].min()), int(high[sees].max())
    everything = bool((low == first).all()) and bool((high == stop).all())
    own = [to_device((each - first).clamp(0, stop - first), device) for each in (low, high)]
    starts, ends = (None, None) if everything else own
    where = slice(query[0], query[0] + low.shape[1]), slice(at + first - begin, at + stop - begin)
    return Tile(*where, query[1], first, starts, ends)
