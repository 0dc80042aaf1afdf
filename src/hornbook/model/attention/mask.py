"""Attention masks in which every query sees one interval of keys.

Causal and bidirectional attention, documents, padding (a document of its own), prefixes, sliding windows and attention
from one stack to another all have this form, so a mask is two integers per query: kernels skip keys outside the
interval, and no tensor of [queries, keys] is made. An `AttentionMask` is hashable, so tiles are planned once and shared
by all layers.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

DocumentLengths = tuple[tuple[int, ...], ...]
"""One integer per document of each row of a batch; hashable."""
Spans = tuple[tuple[int, int], ...]
"""Runs of positions: the first, and one past the last."""
Interval = tuple[Int[Tensor, " queries"], Int[Tensor, " queries"]]
"""First key each query sees, and one past the last; equal where it sees none."""


@dataclass(frozen=True)
class RowPart:
    """Which positions of each row are here, where rows are divided into parts that are computed apart."""

    parts: tuple[Spans, ...]
    """Positions of each part in the order of its tokens. Parts have equal sizes; positions from `length` on pad."""
    number: int
    """Of the part that is here."""
    length: int
    """Positions of the whole row."""

    @property
    def spans(self) -> Spans:
        """Positions of the tokens that are here."""
        return self.parts[self.number]

    def runs(self, first: int, count: int) -> list[range]:
        """Positions of `count` of the tokens that are here, from number `first` on; of those behind the last, any."""
        found, at, last = [], 0, max(end for spans in self.parts for _, end in spans)
        for start, end in (*self.spans, (last, last + first + count)):
            begin, stop = max(first - at, 0), min(first + count - at, end - start)
            if begin < stop:
                found.append(range(start + begin, start + stop))
            at += end - start
        return found


@dataclass(frozen=True)
class AttentionMask:
    """The interval of each query; queries are the last of the keys' positions, except across stacks."""

    kind: Literal["causal", "bidirectional", "cross"] = "causal"
    """`causal`: keys up to its own position; `bidirectional`: all keys; `cross`: keys of another sequence."""
    lengths: DocumentLengths | None = None
    """Lengths of the documents of each row, in order; a query sees keys of its own document only (`cross`: of the
    document with the same number). None: one document; `cross` queries then see the first document of keys."""
    key_lengths: DocumentLengths | None = None
    """`cross`: document lengths of the other sequence; None: one document."""
    window: int | None = None
    """`causal`: keys seen at most, the query's own included; `bidirectional`: window // 2 on each side and its own."""
    prefixes: DocumentLengths | None = None
    """`causal`: number of positions at the start of each document that see each other in both directions."""
    part: RowPart | None = None
    """Which queries are here, and which keys unless `key_part` says it; None: all. Intervals are those of the row."""
    key_part: RowPart | None = None
    """`cross`: which keys are here."""
    tables: Mapping[int | None, Any] | None = field(default=None, compare=False, repr=False)
    """The same on a device, by window (`hornbook.model.attention.key_tables.with_tables`); None: not made yet."""

    def narrowed(self, window: int | None) -> "AttentionMask":
        """The same with a sliding window, as one layer may have it."""
        if window == self.window:
            return self
        known = self.tables is not None and window in self.tables
        return replace(self, window=window, tables=self.tables if known else None)

    @property
    def uniform(self) -> bool:
        """Whether all rows of a batch have the same intervals."""
        return all(rows is None or rows.count(rows[0]) == len(rows) for rows in self._rows())

    @property
    def unbroken(self) -> bool:
        """Whether every row is one document without a prefix."""
        return self.prefixes is None and all(rows is None or max(map(len, rows)) == 1 for rows in self._rows())

    def intervals(self, queries: int, keys: int, row: int = 0) -> Interval:
        """The interval of each query of a row; queries are the last of the keys' positions."""
        if self.kind == "cross":
            return self._across(queries, keys, row)
        starts, ends = _boundaries(self.lengths, row, keys)
        number = _document_numbers(starts, ends)[keys - queries :]
        prefix = None if self.prefixes is None else torch.tensor(self.prefixes[row])[number]
        return self._seen(starts[number], ends[number], prefix, keys)

    def intervals_of_rows(self, queries: int, keys: int, rows: int) -> Interval:
        """The intervals of each query of rows 0 to `rows` - 1, [rows, queries] each.

        Documents of all rows at once: a GPU waits for this at the beginning of every step.
        """
        if self.kind == "cross" or self.lengths is None:
            starts, ends = zip(*(self.intervals(queries, keys, row) for row in range(rows)), strict=True)
            return torch.stack(starts), torch.stack(ends)
        for row, own in enumerate(self.lengths[:rows]):
            assert sum(own) == keys, f"row {row}: documents of {sum(own)} positions in all, but there are {keys}"
        sizes = torch.tensor([*chain(*self.lengths[:rows])])
        counts = torch.tensor([*map(len, self.lengths[:rows])])
        ends = sizes.cumsum(0) - keys * torch.arange(rows).repeat_interleave(counts)
        number = torch.arange(len(sizes)).repeat_interleave(sizes).view(rows, keys)[:, keys - queries :]
        prefix = None if self.prefixes is None else torch.tensor([*chain(*self.prefixes[:rows])])[number]
        return self._seen((ends - sizes)[number], ends[number], prefix, keys)

    def _seen(self, starts: Tensor, ends: Tensor, prefix: Tensor | None, keys: int) -> Interval:
        """What the last queries of `keys` positions see of their documents, which reach from `starts` to `ends`."""
        positions = torch.arange(keys - starts.shape[-1], keys)
        if self.kind == "causal":
            ends = torch.maximum(positions + 1, starts + (0 if prefix is None else prefix))
        if self.window is not None:
            before, after = (self.window - 1, keys) if self.kind == "causal" else (self.window // 2, self.window // 2)
            starts, ends = torch.maximum(starts, positions - before), torch.minimum(ends, positions + after + 1)
        return starts, ends

    def _across(self, queries: int, keys: int, row: int) -> Interval:
        starts, ends = _boundaries(self.key_lengths, row, keys)
        number = torch.zeros(queries, dtype=torch.int64)
        if self.lengths is not None:
            own = _boundaries(self.lengths, row, queries)
            assert len(own[0]) == len(starts), f"row {row}: {len(own[0])} documents attend to {len(starts)} documents"
            number = _document_numbers(*own)
        return starts[number], ends[number]

    def _rows(self) -> tuple[DocumentLengths | None, ...]:
        return self.lengths, self.key_lengths, self.prefixes


def _boundaries(lengths: DocumentLengths | None, row: int, total: int) -> Interval:
    """Starts and ends of the documents of a row."""
    own = (total,) if lengths is None else lengths[row]
    assert sum(own) == total, f"row {row}: documents of {sum(own)} positions in all, but there are {total}"
    sizes = torch.tensor(own)
    ends = sizes.cumsum(0)
    return ends - sizes, ends


def _document_numbers(starts: Tensor, ends: Tensor) -> Int[Tensor, " positions"]:
    """For each position the number of its document."""
    return torch.arange(len(starts)).repeat_interleave(ends - starts)


def as_tuples(rows: Iterable[Iterable[int]] | None) -> DocumentLengths | None:
    """Document lengths in hashable form."""
    return None if rows is None else tuple(map(tuple, rows))
