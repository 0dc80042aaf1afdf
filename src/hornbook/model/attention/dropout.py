"""Dropout of attention probabilities without a generator: each falls by a hash of where it stands.

A decision is a function of (row's key, layer, site, head, position of the query, position of the key), so it is equal
under recomputation, in any microbatch and in any block (`hornbook.model.layers.dropout` has the hash).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hornbook.model.cpu.attention_dropout import drop
from hornbook.model.cpu.team import supports
from hornbook.model.layers.dropout import mix

POSITIONS = 2**24
"""Positions a row may have."""
CHANCES = 2**24
"""A probability is kept by so many equally likely draws at most."""


class AttentionDropout(NamedTuple):
    """Zero probabilities with probability `rate` and scale the rest by 1 / (1 - rate)."""

    places: Int[Tensor, " batch"]
    """The rows' keys at this place of the model (`hornbook.model.layers.dropout.site_keys`)."""
    rate: float

    def __call__(
        self, x: Float[Tensor, "rows heads queries keys"], rows: slice, queries: range, keys: range
    ) -> Float[Tensor, "rows heads queries keys"]:
        """`x`, the part of all probabilities at these rows of the batch and positions, dropped."""
        threshold, scale = round((1 - self.rate) * CHANCES), 1 / (1 - self.rate)
        if supports(x):
            return drop(x, self.places[rows], (queries.start, keys.start), threshold, scale)
        return x * self.keep(rows, x.shape[1], queries, keys) * scale

    def keep(self, rows: slice, heads: int, queries: range, keys: range) -> Bool[Tensor, "rows heads queries keys"]:
        """True where a probability is kept."""
        device = self.places.device
        head, query, key = (torch.arange(r.start, r.stop, device=device) for r in (range(heads), queries, keys))
        index = (head[:, None, None] * POSITIONS + query[:, None]) * POSITIONS + key
        drawn = (mix(self.places[rows, None, None, None] ^ mix(index)) >> 40) & (CHANCES - 1)
        return drawn < round((1 - self.rate) * CHANCES)
