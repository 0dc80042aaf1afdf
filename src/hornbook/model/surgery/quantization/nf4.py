"""4-bit NormalFloat with double quantization (QLoRA, Dettmers et al. 2023, arXiv 2305.14314).

A block of consecutive values is divided by its largest, and each becomes the nearest of 16 levels, which are quantiles
of a normal distribution (section 3). The largest values, one float32 for each block, are quantized in turn: less their
mean, in blocks of 256, each to the nearest of 256 levels of a dynamic tree (Dettmers et al. 2022, arXiv 2110.02861,
section 1.3). With blocks of 64 that is 4.127 bits for each value.
"""

from functools import cache
from statistics import NormalDist

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from hornbook.model.config.surgery_config import Nf4
from hornbook.model.layers.transfer import to_device
from hornbook.model.surgery.added import matching_linears
from hornbook.model.surgery.quantization.integers import check_group, pack, put_code, restored

SCALES_PER_BLOCK = 256
OUTERMOST = 0.5 * (1 - 1 / 30 + 1 - 1 / 32)
"""Probability up to which quantiles are taken: those of 0 and 1 are infinite (the paper's section 3, and its code)."""


@cache
def levels() -> Float[Tensor, " levels"]:
    """The 16 values of a code, ascending: 7 quantiles below zero, zero, 8 above, the outermost at -1 and 1."""

    def half(count: int) -> list[float]:
        probabilities = torch.linspace(OUTERMOST, 0.5, count + 1, dtype=torch.float64)[:-1].tolist()
        return [NormalDist().inv_cdf(p) for p in probabilities]

    values = torch.tensor([*half(8), 0.0, *(-each for each in half(7))], dtype=torch.float64).sort().values
    return (values / values.max()).float()


@cache
def scale_levels() -> Float[Tensor, " levels"]:
    """The 256 values of a quantized scale: seven decades 10^-6 to 1, the k-th in 2^k steps, of both signs; 0; 1."""
    values = [0.0, 1.0]
    for decade in range(7):
        edges = torch.linspace(0.1, 1.0, 2**decade + 1, dtype=torch.float64)
        middles = ((edges[:-1] + edges[1:]) / 2 * 10.0 ** (decade - 6)).tolist()
        values += [sign * middle for middle in middles for sign in (1, -1)]
    return torch.tensor(sorted(values), dtype=torch.float64).float()


def nearest(x: Float[Tensor, "*shape"], table: Float[Tensor, " levels"]) -> UInt8[Tensor, "*shape"]:
    """Index of the level nearest to each value."""
    table = table.to(x.device)
    return torch.bucketize(x.contiguous(), (table[:-1] + table[1:]) / 2).to(torch.uint8)


class Nf4Code(nn.Module):
    """4-bit codes in place of a layer's frozen weight."""

    def __init__(self, shape: tuple[int, int], block: int) -> None:
        super().__init__()
        self.shape, self.block = shape, block
        size = shape[0] * shape[1]
        blocks = size // block
        self.codes: Tensor
        self.register_buffer("codes", torch.empty((size + 1) // 2, dtype=torch.uint8))
        self.scale_codes: Tensor
        self.register_buffer("scale_codes", torch.empty(blocks, dtype=torch.uint8))
        self.scale_range: Tensor
        self.register_buffer("scale_range", torch.empty(-(-blocks // SCALES_PER_BLOCK)))
        self.scale_mean: Tensor
        self.register_buffer("scale_mean", torch.empty(()))

    def take(self, weight: Float[Tensor, "outputs inputs"]) -> None:
        """Hold the codes of this matrix."""
        blocks = weight.detach().float().reshape(-1, self.block)
        largest = blocks.abs().amax(1)
        share = torch.where(largest > 0, largest, torch.ones_like(largest))[:, None]
        self.codes.copy_(pack(nearest(blocks / share, levels()).flatten()))
        mean = largest.mean()
        rest = largest - mean
        missing = len(self.scale_range) * SCALES_PER_BLOCK - len(rest)
        groups = torch.cat([rest, rest.new_zeros(missing)]).view(-1, SCALES_PER_BLOCK)
        spread = groups.abs().amax(1)
        codes = nearest(groups / torch.where(spread > 0, spread, torch.ones_like(spread))[:, None], scale_levels())
        self.scale_codes.copy_(codes.flatten()[: len(rest)])
        self.scale_range.copy_(spread)
        self.scale_mean.copy_(mean)

    def scales(self) -> Float[Tensor, " blocks"]:
        """The restored scales of the blocks."""
        ranges = self.scale_range.repeat_interleave(SCALES_PER_BLOCK)[: len(self.scale_codes)]
        return to_device(scale_levels(), ranges.device)[self.scale_codes.long()] * ranges + self.scale_mean

    def forward(self, weight: Tensor) -> Float[Tensor, "outputs inputs"]:
        del weight  # on meta: the codes are the values
        return restored(self.codes, levels(), self.scales(), None, self.shape)


def add_nf4(model: nn.Module, step: Nf4) -> None:
    """Replace the weights of the layers the step names by codes; the values come with the base's.

    UsageError for blocks that do not divide a row.
    """
    for name, layer in matching_linears(model, step.targets, "surgery nf4 targets").items():
        outputs, inputs = layer.weight.shape
        check_group(inputs, step.block, name, "surgery nf4 block")
        with torch.device(layer.weight.device):
            code = Nf4Code((outputs, inputs), step.block)
        put_code(layer, code)
