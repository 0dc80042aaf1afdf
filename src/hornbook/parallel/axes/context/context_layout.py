"""Which positions of a row each rank of the axis `context` computes.

Rows are cut into chunks of equal size, padded at the end where they do not divide, and every rank takes as many chunks.

    contiguous    rank r of n has chunk r of n: right where every query sees as many keys
    head-tail     rank r has chunks r and 2n - 1 - r of 2n: equal work under a causal mask of one document
    by cost       8n chunks, dearest first, each to the rank with the least work: for documents of any lengths

The cost of a chunk is the number of pairs of query and key that its queries see. Of the three the first one whose
largest rank has least to do is taken; all ranks find the same one, since they know the same documents.
"""

from collections.abc import Sequence
from functools import lru_cache

import torch
from jaxtyping import Int
from torch import Tensor

from hornbook.model.attention.mask import AttentionMask, RowPart, Spans

FINEST = 8
"""Chunks of a rank where they are given out by cost."""
LEAST_CHUNK = 16
"""Positions that a chunk given out by cost has at least."""
GAIN = 0.95
"""A later layout is taken where its most work is below this share of an earlier one's."""


def contiguous(ranks: int, length: int) -> tuple[Spans, ...]:
    """Parts of one chunk each."""
    return _parts([[rank] for rank in range(ranks)], -(-length // ranks))


def head_tail(ranks: int, length: int) -> tuple[Spans, ...]:
    """Parts of an early and a late chunk."""
    return _parts([[rank, 2 * ranks - 1 - rank] for rank in range(ranks)], -(-length // (2 * ranks)))


@lru_cache(maxsize=64)
def divide_rows(mask: AttentionMask, ranks: int, length: int, rows: int) -> tuple[Spans, ...]:
    """The parts of rows of `length` under a mask, one for each rank."""
    if mask.kind == "causal" and mask.unbroken and mask.window is None:
        return head_tail(ranks, length)
    costs = _costs(mask, length, rows)
    best = contiguous(ranks, length)
    most = _most_work(best, costs)
    candidates = [head_tail(ranks, length)]
    if length >= FINEST * ranks * LEAST_CHUNK:
        candidates.append(by_cost(costs, ranks))
    for parts in candidates:
        work = _most_work(parts, costs)
        if work < GAIN * most:
            best, most = parts, work
    return best


def by_cost(costs: Int[Tensor, " length"], ranks: int) -> tuple[Spans, ...]:
    """Parts of `FINEST` chunks each; costs: of each position of a row."""
    size = -(-len(costs) // (FINEST * ranks))
    works = _work(costs, [(first, first + size) for first in range(0, FINEST * ranks * size, size)])
    taken: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0] * ranks
    for chunk in sorted(range(len(works)), key=lambda chunk: (-works[chunk], chunk)):
        rank = min((rank for rank in range(ranks) if len(taken[rank]) < FINEST), key=lambda rank: loads[rank])
        taken[rank].append(chunk)
        loads[rank] += works[chunk]
    return _parts([sorted(chunks) for chunks in taken], size)


def _parts(chunks: list[list[int]], size: int) -> tuple[Spans, ...]:
    """Spans of each rank's chunks; neighbours are one span."""
    return tuple(_joined([(chunk * size, (chunk + 1) * size) for chunk in own]) for own in chunks)


def _joined(spans: list[tuple[int, int]]) -> Spans:
    joined = spans[:1]
    for first, end in spans[1:]:
        if first == joined[-1][1]:
            joined[-1] = (joined[-1][0], end)
        else:
            joined.append((first, end))
    return tuple(joined)


def _costs(mask: AttentionMask, length: int, rows: int) -> Int[Tensor, " length"]:
    """Keys seen by the query at each position, over all rows."""
    different = 1 if mask.uniform else rows
    intervals = [mask.intervals(length, length, row) for row in range(different)]
    return torch.stack([ends - starts for starts, ends in intervals]).sum(0)


def _work(costs: Tensor, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Cost of each span; padding costs nothing."""
    before = [0, *costs.cumsum(0).tolist()]
    first, end = (torch.tensor(each).clamp(max=len(costs)).tolist() for each in zip(*spans, strict=True))
    return [before[b] - before[a] for a, b in zip(first, end, strict=True)]


def _most_work(parts: tuple[Spans, ...], costs: Tensor) -> int:
    return max(sum(_work(costs, spans)) for spans in parts)


def row_part(mask: AttentionMask, ranks: int, rank: int, length: int, rows: int) -> RowPart:
    """What rank `rank` has of rows of `length`."""
    return RowPart(divide_rows(mask, ranks, length, rows), rank, length)


def places(part: RowPart, device: torch.device) -> Int[Tensor, " positions"]:
    """Positions of all parts, behind one another; int32, for each layer keeps them for backward."""
    return torch.cat([torch.arange(*span, dtype=torch.int32, device=device) for spans in part.parts for span in spans])


def order(part: RowPart, device: torch.device) -> Int[Tensor, " length"]:
    """For each position of the row its place among all parts, behind one another; int32."""
    return places(part, device).argsort()[: part.length].int()
