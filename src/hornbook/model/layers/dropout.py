"""Dropout without a generator: each decision is a hash of where it falls.

A value is kept by a pure function of (seed, step, sample, layer, site, position, feature), so the mask is equal
under recomputation, in any microbatch, on any rank, and any slice of it can be made alone. The hash is the
finaliser of SplitMix64 (Steele et al. 2014, "Fast splittable pseudorandom number generators").
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from hornbook.kernels.compiled import GOLDEN, MIX_FIRST, MIX_SECOND
from hornbook.kernels.team import supports
from hornbook.model.attention.mask import AttentionMask
from hornbook.model.cpu.cpu_dropout import DropoutFunction, drop_probabilities
from hornbook.model.forward_context import Context
from hornbook.model.layers.transfer import to_device

SITES = 64
"""Places in a layer where values can be dropped, at most."""
_GAMMA, *_MULTIPLIERS = (int(each) - 2**64 for each in (GOLDEN, MIX_FIRST, MIX_SECOND))


def mix(x: Int[Tensor, "*shape"]) -> Int[Tensor, "*shape"]:
    """SplitMix64 of each int64, in wrapping arithmetic: a bijection whose output bits all depend on all input bits."""
    x = x + _GAMMA
    for multiplier, shift in zip(_MULTIPLIERS, (30, 27), strict=True):
        x = (x ^ _shift_right(x, shift)) * multiplier
    return x ^ _shift_right(x, 31)


def _shift_right(x: Tensor, bits: int) -> Tensor:
    """Logical shift: torch's shift of int64 carries the sign."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def row_keys(seed: int, step: int, samples: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """One key per row of a batch, from the run's seed, the optimizer step and the rows' global sample indices."""
    base = mix(mix(torch.tensor(seed)) + torch.tensor(step))  # on the host, and from there a number: no device waits
    return mix(samples + int(base))


def layer_number(layer: int) -> Int[Tensor, ""]:
    """A layer's number as a tensor on the host: as a number it would be part of a compiled block, and each layer would
    be compiled anew."""
    return torch.tensor(layer, device="cpu")


def site_keys(keys: Int[Tensor, " batch"], layer: int | Tensor, site: int) -> Int[Tensor, " batch"]:
    """The rows' keys at one site of the model."""
    return mix(keys + (layer * SITES + site))


def keep_mask(
    hashes: Int[Tensor, " batch"], threshold: int, positions: range, features: range, width: int
) -> Bool[Tensor, "batch time features"]:
    """True where a value is kept, with probability threshold / 2^24, for some positions and features of a row.

    hashes: from `site_keys`; width: full number of features, so that any slice equals that part of the whole.
    """
    return _draws(hashes, positions, features, width) < threshold


def uniform(
    hashes: Int[Tensor, " batch"], positions: range, features: range, width: int
) -> Float[Tensor, "batch time features"]:
    """Numbers from [0, 1), multiples of 2^-24, float32; arguments as of `keep_mask`."""
    return _draws(hashes, positions, features, width).float() * 2.0**-24


def _draws(hashes: Tensor, positions: range, features: range, width: int) -> Int[Tensor, "batch time features"]:
    """24 random bits for each value."""
    row = torch.arange(positions.start, positions.stop, device=hashes.device)[:, None] * width
    index = row + torch.arange(features.start, features.stop, device=hashes.device)
    return _shift_right(mix(hashes[:, None, None] ^ mix(index)), 40)


class Dropout(nn.Module):
    """Zero values with probability `rate` and scale the rest by 1 / (1 - rate), if the context has keys."""

    def __init__(self, rate: float, layer: int, site: int) -> None:
        super().__init__()
        assert 0 <= site < SITES
        self.rate, self.number, self.site = rate, layer_number(layer), site
        self.part = 0
        """Number of x among parts of equal length of its rows."""

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Float[Tensor, "batch time width"]:
        if self.rate == 0 or context.keys is None:
            return x
        hashes = site_keys(context.keys, self.number, self.site)
        threshold, scale = round((1 - self.rate) * 2**24), 1 / (1 - self.rate)
        part = context.mask.part
        first = self.part * x.shape[1]
        if part is None:
            return _drop(x, hashes, first, threshold, scale)
        runs = part.runs(first, x.shape[1])
        pieces = zip(x.split([len(run) for run in runs], 1), runs, strict=True)
        return torch.cat([_drop(piece, hashes, run.start, threshold, scale) for piece, run in pieces], 1)


def _drop(x: Tensor, hashes: Tensor, first: int, threshold: int, scale: float) -> Tensor:
    """x [batch, time, width], which begins at position `first` of its rows, dropped."""
    if supports(x):
        return DropoutFunction.apply(x, hashes, threshold, scale, first)
    time, width = x.shape[1:]
    return x * keep_mask(hashes, threshold, range(first, first + time), range(width), width) * scale


def embedding_noise(
    x: Float[Tensor, "batch time width"], keys: Tensor, site: int, alpha: float, mask: AttentionMask
) -> Float[Tensor, "batch time width"]:
    """x with NEFTune's noise (Jain et al. 2023, arXiv 2310.05914): alpha / sqrt(L d) times uniform numbers of [-1, 1).

    L: tokens of the document that a position is in; d: width. A pure function of row, position and feature.
    """
    hashes, (batch, time, width) = site_keys(keys, layer_number(0), site), x.shape
    runs = [range(time)] if mask.part is None else mask.part.runs(0, time)
    draws = torch.cat([uniform(hashes, run, range(width), width) for run in runs], 1)
    if mask.lengths is None:
        sizes = torch.full((batch, time), float(time if mask.part is None else mask.part.length), device=x.device)
    else:
        whole = torch.tensor([[size for size in row for _ in range(size)] for row in mask.lengths], dtype=torch.float32)
        here = [index for run in runs for index in run]
        sizes = to_device(whole[:, here], x.device)
    return x + (2 * draws - 1) * (alpha / (sizes * width).sqrt())[..., None]


class RowDropout(Dropout):
    """Zero whole rows of a batch with probability `rate` and scale the rest (stochastic depth, arXiv 1603.09382)."""

    def forward(self, x: Float[Tensor, "batch time width"], context: Context) -> Float[Tensor, "batch time width"]:
        if self.rate == 0 or context.keys is None:
            return x
        hashes = site_keys(context.keys, self.number, self.site)
        kept = keep_mask(hashes, round((1 - self.rate) * 2**24), range(1), range(1), 1)
        return x * (kept * (1 / (1 - self.rate))).to(x.dtype)


# ---- Attention probabilities: keyed by (row, layer, site, head, position of the query, position of the key)

POSITIONS = 2**24
"""Positions a row may have."""
CHANCES = 2**24
"""Number of equally likely draws, of which the kept ones are a threshold."""


class AttentionDropout(NamedTuple):
    """Zero probabilities with probability `rate` and scale the rest by 1 / (1 - rate)."""

    hashes: Int[Tensor, " batch"]
    """The rows' keys at this site of the model, from `site_keys`."""
    rate: float
    first_head: int = 0
    """Number of the first of these heads among those of the layer."""

    def from_head(self, first: int) -> "AttentionDropout":
        """The same of heads that begin with the `first` of these."""
        return self._replace(first_head=self.first_head + first)

    def __call__(
        self, x: Float[Tensor, "rows heads queries keys"], rows: slice, queries: range, keys: range
    ) -> Float[Tensor, "rows heads queries keys"]:
        """`x`, the part of all probabilities at these rows of the batch and positions, dropped."""
        threshold, scale = round((1 - self.rate) * CHANCES), 1 / (1 - self.rate)
        if supports(x):
            begin = self.first_head, queries.start, keys.start
            return drop_probabilities(x, self.hashes[rows], begin, threshold, scale)
        return x * self.keep(rows, x.shape[1], queries, keys) * scale

    def keep(self, rows: slice, heads: int, queries: range, keys: range) -> Bool[Tensor, "rows heads queries keys"]:
        """True where a probability is kept."""
        device = self.hashes.device
        here = range(self.first_head, self.first_head + heads)
        head, query, key = (torch.arange(r.start, r.stop, device=device) for r in (here, queries, keys))
        index = (head[:, None, None] * POSITIONS + query[:, None]) * POSITIONS + key
        drawn = (mix(self.hashes[rows, None, None, None] ^ mix(index)) >> 40) & (CHANCES - 1)
        return drawn < round((1 - self.rate) * CHANCES)
