"""Attention of rows that are divided over ranks: heads for positions (Ulysses; Jacobs et al. 2023, arXiv 2309.14509).

Before attention each rank gives away its positions of all heads but its own, and gets all positions of its heads.
Attention then is the ordinary one, of whole rows and fewer heads, by the fastest way there is; afterwards the results
go back. Four exchanges of a rank's share of the activations per layer, whatever the length of a row.

Key-value heads that do not divide among the ranks are repeated until they do; their gradients add up.
"""

import math
from dataclasses import dataclass, replace
from typing import Unpack

import torch
from torch import Tensor

from hornbook.model.attention.attend import attend
from hornbook.model.attention.mask import AttentionMask, RowPart
from hornbook.model.attention.tiled_attention import ScoringOptions, scoring_of
from hornbook.parallel.axes.context.context_layout import order, places
from hornbook.parallel.axes.context.part_exchange import CONTEXT, AllToAll
from hornbook.parallel.world import World


@dataclass(frozen=True)
class AllToAllAttention:
    """In place of `attend` where `AttentionMask.part` says which part of each row is here; exact for every mask."""

    world: World

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, mask: AttentionMask, **options: Unpack[ScoringOptions]
    ) -> Tensor:
        """query [batch, heads, part, dim], key [batch, kv_heads, part, dim], value [batch, kv_heads, part, value_dim]
        -> [batch, heads, part, value_dim]."""
        part = mask.part
        if part is None:
            return attend(query, key, value, mask, **options)
        of_keys, scoring = mask.key_part or part, scoring_of(query, options)
        rank, size = self.world.axis_rank(CONTEXT), self.world.axis_size(CONTEXT)
        own = query.shape[1] // size
        heads = slice(rank * own, (rank + 1) * own)
        repeats = size // math.gcd(size, key.shape[1])
        key, value = (each if repeats == 1 else each.repeat_interleave(repeats, 1) for each in (key, value))
        at = order(part, query.device)
        at_keys = at if of_keys == part else order(of_keys, key.device)
        found = attend(
            self._to_rows(query, at),
            self._to_rows(key, at_keys),
            self._to_rows(value, at_keys),
            replace(mask, part=None, key_part=None),
            scale=scoring.scale,
            softcap=scoring.softcap,
            bias=None if scoring.bias is None else scoring.bias[heads],
            sinks=None if scoring.sinks is None else scoring.sinks[heads],
            dropout=None if scoring.dropout is None else scoring.dropout.from_head(heads.start),
        )
        return self._to_parts(found, part)

    def _to_rows(self, x: Tensor, at: Tensor) -> Tensor:
        """[batch, heads, part, dim] -> [batch, heads / ranks, row, dim]; `at` as of `order`."""
        given = x.unflatten(1, (self.world.axis_size(CONTEXT), -1)).transpose(0, 1)
        got = AllToAll.apply(given, self.world)  # [ranks, batch, heads / ranks, part, dim]
        return got.permute(1, 2, 0, 3, 4).flatten(2, 3).index_select(2, at)

    def _to_parts(self, x: Tensor, part: RowPart) -> Tensor:
        """The inverse; padding gets zeros."""
        found = places(part, x.device)
        padded = torch.nn.functional.pad(x, (0, 0, 0, len(found) - part.length))
        given = padded.index_select(2, found).unflatten(2, (len(part.parts), -1)).permute(2, 0, 1, 3, 4)
        return AllToAll.apply(given, self.world).transpose(0, 1).flatten(1, 2)
