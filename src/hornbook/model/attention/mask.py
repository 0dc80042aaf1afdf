"""Who sees whom: every query sees one interval of keys.

Causal order, both ways, documents, padding (a piece of its own), prefixes, sliding windows and attention from one stack
to another are all of this form, so a mask is two integers per query: kernels skip what lies outside, and nothing of
the size of a square is made. A `Sight` is hashable, so plans over it are made once and shared by all layers.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Pieces = tuple[tuple[int, ...], ...]
"""One integer per piece of each row of a batch."""
Interval = tuple[Int[Tensor, " queries"], Int[Tensor, " queries"]]
"""First key each query sees, and one behind the last; equal where it sees none."""


@dataclass(frozen=True)
class Sight:
    """The interval of each query; queries are the last of the keys' positions, except across stacks."""

    kind: Literal["causal", "both", "cross"] = "causal"
    """`causal`: keys up to its own position; `both`: all keys; `cross`: keys of another sequence."""
    lengths: Pieces | None = None
    """Lengths of the pieces each row consists of, in order; a query sees keys of its own piece only (`cross`: of the
    piece with the same number). None: one piece; across stacks every query then sees the first piece of keys."""
    key_lengths: Pieces | None = None
    """Across stacks, the pieces of the other sequence; None: one piece."""
    window: int | None = None
    """`causal`: keys seen at most, the query's own included; `both`: window // 2 on each side, and the query's own."""
    prefixes: Pieces | None = None
    """`causal`: the first so many positions of each piece see each other both ways."""

    def narrowed(self, window: int | None) -> "Sight":
        """The same with a sliding window, as one layer may have it."""
        return self if window == self.window else replace(self, window=window)

    @property
    def uniform(self) -> bool:
        """Whether all rows of a batch are alike."""
        return all(rows is None or rows.count(rows[0]) == len(rows) for rows in self._rows())

    @property
    def unbroken(self) -> bool:
        """Whether every row is one piece without a prefix."""
        return self.prefixes is None and all(rows is None or max(map(len, rows)) == 1 for rows in self._rows())

    def intervals(self, queries: int, keys: int, row: int = 0) -> Interval:
        """What each query of a row sees; of all positions, the queries are the last."""
        if self.kind == "cross":
            return self._across(queries, keys, row)
        places = torch.arange(keys - queries, keys)
        starts, ends = _pieces(self.lengths, row, keys)
        number = _numbers(starts, ends)[keys - queries :]
        starts, ends = starts[number], ends[number]
        if self.kind == "causal":
            prefix = 0 if self.prefixes is None else torch.tensor(self.prefixes[row])[number]
            ends = torch.maximum(places + 1, starts + prefix)
        if self.window is not None:
            causal = self.kind == "causal"
            before, after = (self.window - 1, keys) if causal else (self.window // 2, self.window // 2)
            starts, ends = torch.maximum(starts, places - before), torch.minimum(ends, places + after + 1)
        return starts, ends

    def _across(self, queries: int, keys: int, row: int) -> Interval:
        starts, ends = _pieces(self.key_lengths, row, keys)
        number = torch.zeros(queries, dtype=torch.int64)
        if self.lengths is not None:
            own = _pieces(self.lengths, row, queries)
            assert len(own[0]) == len(starts), f"row {row}: {len(own[0])} pieces look at {len(starts)} pieces"
            number = _numbers(*own)
        return starts[number], ends[number]

    def _rows(self) -> tuple[Pieces | None, ...]:
        return self.lengths, self.key_lengths, self.prefixes


def _pieces(lengths: Pieces | None, row: int, total: int) -> Interval:
    """Begins and ends of the pieces of a row."""
    own = (total,) if lengths is None else lengths[row]
    assert sum(own) == total, f"row {row}: pieces of {sum(own)} positions in all, but there are {total}"
    sizes = torch.tensor(own)
    ends = sizes.cumsum(0)
    return ends - sizes, ends


def _numbers(starts: Tensor, ends: Tensor) -> Int[Tensor, " positions"]:
    """For each position the number of its piece."""
    return torch.arange(len(starts)).repeat_interleave(ends - starts)


def mask(
    sight: Sight, batch: int, queries: int, keys: int, device: torch.device | str = "cpu"
) -> Bool[Tensor, "rows queries keys"]:
    """True where a query sees a key; rows is the batch, or 1 where all rows are alike."""
    intervals = [sight.intervals(queries, keys, row) for row in range(1 if sight.uniform else batch)]
    starts, ends = (torch.stack(each).to(device)[..., None] for each in zip(*intervals, strict=True))
    place = torch.arange(keys, device=device)
    return (starts <= place) & (place < ends)


def as_tuples(rows: Iterable[Iterable[int]] | None) -> Pieces | None:
    """Lengths in a form that can be hashed."""
    return None if rows is None else tuple(map(tuple, rows))
