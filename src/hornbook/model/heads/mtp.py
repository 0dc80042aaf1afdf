"""Multi-token prediction: blocks behind the last one, whose states the head reads for tokens further ahead.

DeepSeek-V3 (arXiv 2412.19437, section 2.2). With h(0) the states that the head of the next token reads, e the vector
with which a token enters the first block, and D blocks:

    x(k)_i = M_k [norm(h(k-1)_i); norm(e_(i+k))],  h(k) = norm(block_k(x(k))),  logits of token i + k + 1: head(h(k)_i)
    loss = lambda / D * sum_k (cross-entropy of h(k), divided by the same weight as that of h(0))

`parallel` has x(k) = h(0) instead. Blocks are named and numbered as further layers, so that initial values, learning
rates and dropout keys follow from their names as everywhere. Positions from which k tokens further on another document
begins have weight 0, and are seen by such positions alone.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hornbook.model.attention.mask import DocumentLengths, RowPart
from hornbook.model.attention.position import Lengths
from hornbook.model.forward_context import Auxiliary, Context
from hornbook.model.layers.linear import Linear
from hornbook.model.layers.transfer import to_device

STATES = "mtp."
"""Auxiliary values by names that begin so are states of block k, [batch, time, width], that the head reads."""


class Join(nn.Module):
    """Projection of states and of the vectors of later tokens, side by side, each after a norm."""

    def __init__(self, width: int, norms: tuple[nn.Module | None, nn.Module | None]) -> None:
        super().__init__()
        self.state_norm, self.token_norm = norms
        self.project = Linear(2 * width, width, bias=False)

    def forward(
        self, states: Float[Tensor, "batch time width"], vectors: Float[Tensor, "batch time width"]
    ) -> Float[Tensor, "batch time width"]:
        states = states if self.state_norm is None else self.state_norm(states)
        vectors = vectors if self.token_norm is None else self.token_norm(vectors)
        return self.project(torch.cat([states, vectors], -1))


class MultiToken(nn.Module):
    """The blocks of multi-token prediction, by the number of their layer."""

    loss_names = ("mtp",)

    def __init__(self, blocks: dict[str, nn.Module], joins: dict[str, Join], norms: dict[str, nn.Module]) -> None:
        super().__init__()
        self.blocks, self.joins, self.norms = nn.ModuleDict(blocks), nn.ModuleDict(joins), nn.ModuleDict(norms)
        self.shift: Callable[[Tensor, int, RowPart | None], Tensor] = shifted
        """Another one where other parts of rows are on other ranks."""

    @property
    def depth(self) -> int:
        """Tokens predicted besides the next one."""
        return len(self.blocks)

    def forward(
        self, states: Float[Tensor, "batch time width"], vectors: Float[Tensor, "batch time width"], context: Context
    ) -> Auxiliary:
        """States of each block under `STATES` and its number from 1, and what the blocks add to the objective.

        states: what the head reads; vectors: input of the first block, of the same tokens.
        """
        found, last, part = Auxiliary(), states, context.mask.part
        for ahead in range(1, self.depth + 1):
            token_mask = context.token_mask
            if token_mask is not None:
                goes_on = reaches(context.mask.lengths, token_mask, ahead, part)
                token_mask = self.shift(token_mask, ahead, part) & goes_on
            later = self.shift(vectors, ahead, part) if self.joins else vectors
            last, auxiliary = self.step(
                ahead, last if self.joins else states, later, replace(context, token_mask=token_mask)
            )
            found |= {f"{STATES}{ahead}": last}
            for name, value in auxiliary.items():
                found[name] = found[name] + value if name in found else value
        return found

    def step(
        self, ahead: int, states: Float[Tensor, "batch time width"], vectors: Tensor, context: Context
    ) -> tuple[Float[Tensor, "batch time width"], Auxiliary]:
        """Block number `ahead`, of states and the vectors of the tokens so far on."""
        number = list(self.blocks)[ahead - 1]
        x = self.joins[number](states, vectors) if self.joins else states
        x, auxiliary = self.blocks[number](x, context)
        return (self.norms[number](x) if self.norms else x), auxiliary


def shifted(values: Tensor, count: int, part: RowPart | None = None) -> Tensor:
    """Of each position [batch, time, ...] the value `count` positions on; at the end of a row any."""
    assert part is None, "the rest of the rows is elsewhere"
    return values.roll(-count, 1)


def reaches(
    lengths: Lengths | DocumentLengths | None, like: Tensor, count: int, part: RowPart | None = None
) -> Bool[Tensor, "batch time"]:
    """Whether `count` positions on the document of a position goes on; lengths: None for one document a row.

    part: which positions of each row are asked for, of which padding reaches nothing; None: all.
    """
    batch, time = like.shape[0], like.shape[1] if part is None else part.length
    rows = [(time,)] * batch if lengths is None else lengths
    ends = torch.stack([torch.tensor(list(accumulate(row))).repeat_interleave(torch.tensor(row)) for row in rows])
    places = torch.arange(time)
    if part is not None:
        places = torch.cat([torch.arange(*span) for span in part.spans])
        ends = ends[:, places.clamp(max=time - 1)]
    return to_device(places + count < ends, like.device)


def targets_ahead(
    targets: Int[Tensor, "batch time"], weights: Float[Tensor, "batch time"], lengths: Lengths, count: int
) -> tuple[Int[Tensor, "batch time"], Float[Tensor, "batch time"]]:
    """Targets and weights `count` tokens further on; the weight is 0 where the document ends before."""
    return shifted(targets, count), shifted(weights, count) * reaches(lengths, weights, count)
