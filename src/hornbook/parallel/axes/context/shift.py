"""Values of later positions where rows are in parts: what stands in other parts comes from their ranks.

Only the first few positions behind the end of a span are elsewhere. All ranks know which (`borders`): each puts those
that it has in their places among zeros, and the sum over ranks is all of them.
"""

from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor

from hornbook.model.attention.mask import RowPart, Spans
from hornbook.model.heads.mtp import shifted
from hornbook.model.layers.transfer import to_device
from hornbook.parallel.axes.context.part_exchange import CONTEXT
from hornbook.parallel.world import World


def shift_parts(
    world: World, values: Shaped[Tensor, "batch part *rest"], count: int, part: RowPart | None
) -> Shaped[Tensor, "batch part *rest"]:
    """`hornbook.model.heads.mtp.shifted` of the tokens that are here."""
    if part is None:
        return shifted(values, count)
    if values.dtype == torch.bool:
        return shift_parts(world, values.byte(), count, part).bool()
    needed = borders(part, count)
    here = [(slot, index) for slot, each in enumerate(needed) if (index := _index(part.spans, each)) is not None]
    slots, own, sources = (
        to_device(each, values.device)
        for each in (*torch.tensor(here, dtype=torch.int64).view(-1, 2).T, _sources(part, count, needed))
    )
    there = values.new_zeros(len(values), len(needed), *values.shape[2:])
    there = Total.apply(there.index_copy(1, slots, values.index_select(1, own)), world)
    return torch.cat([values, there], 1).index_select(1, sources)


def borders(part: RowPart, count: int) -> list[int]:
    """Positions `count` behind one of some part, and in another part."""
    needed = {
        place + count
        for spans in part.parts
        for first, end in spans
        for place in range(max(first, end - count), end)
        if place + count < part.length and _index(spans, place + count) is None
    }
    return sorted(needed)


def _index(spans: Spans, place: int) -> int | None:
    """Number of a position among the tokens of a part; None where it is not there."""
    at = 0
    for first, end in spans:
        if first <= place < end:
            return at + place - first
        at += end - first
    return None


def _sources(part: RowPart, count: int, needed: list[int]) -> Tensor:
    """Of each token that is here the number of the one `count` positions on, among those here and then those needed.

    Where the row ends before, it is the token's own.
    """
    found, size = list[Tensor](), sum(end - first for first, end in part.spans)
    slots, at = {place: size + slot for slot, place in enumerate(needed)}, 0
    for first, end in part.spans:
        cut = max(first, end - count)
        found.append(torch.arange(at + count, at + count + cut - first))
        last = list[int]()
        for place in range(cut, end):
            own = _index(part.spans, place + count)
            last.append(slots.get(place + count, at + place - first) if own is None else own)
        found.append(torch.tensor(last, dtype=torch.int64))
        at += end - first
    return torch.cat(found)


class Total(torch.autograd.Function):
    """The sum of x over the ranks of the axis, each of which goes on to use it in its own way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World) -> Tensor:
        ctx.world = world
        return world.all_reduce_sum(x.clone(), CONTEXT)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return ctx.world.all_reduce_sum(grads[0].clone(memory_format=torch.contiguous_format), CONTEXT), None
