"""Weights as integers: absmax and affine quantization per tensor, per channel (row) or per group of a row.

Symmetric: scale = max|x| / Q with Q = 2^(bits-1) - 1, code = round(x / scale) in [-Q, Q]: the range is symmetric too,
so that -x gets the code of x negated. Affine: scale = (max - min) / (2^bits - 1) over a range that holds 0, code =
round(x / scale) + zero in [0, 2^bits - 1]. In both, |x - restored| <= scale / 2 (Jacob et al. 2018, arXiv 1712.05877;
Dettmers et al. 2022, arXiv 2208.07339).
"""

from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from hornbook.errors import UsageError
from hornbook.kernels.team import supports
from hornbook.model.config.surgery_config import Grid
from hornbook.model.cpu import four_bits
from hornbook.model.layers.linear import Linear
from hornbook.model.layers.transfer import to_device


@dataclass(frozen=True)
class Quantized:
    """A matrix as integers and scales."""

    codes: Int[Tensor, "outputs inputs"]
    """int8 where symmetric, else uint8."""
    scale: Float[Tensor, "shares 1"]
    """One for each share: the tensor, its rows, or groups in the order of the matrix."""
    zero: Float[Tensor, "shares 1"] | None
    """The code of 0.0, where the range is not symmetric."""

    def restored(self) -> Float[Tensor, "outputs inputs"]:
        """The matrix that the codes encode."""
        codes = self.codes.view(self.scale.shape[0], -1).float()
        return ((codes if self.zero is None else codes - self.zero) * self.scale).view(self.codes.shape)


def shares(weight: Float[Tensor, "outputs inputs"], grid: Grid) -> Float[Tensor, "shares n"]:
    """The matrix cut into what shares a scale; groups divide its rows (`check_group`)."""
    if grid.per == "tensor":
        return weight.reshape(1, -1)
    if grid.per == "channel":
        return weight
    return weight.reshape(-1, grid.group)


def check_group(inputs: int, group: int, name: str, key: str) -> None:
    """UsageError unless groups of that size fill a row."""
    if inputs % group:
        fitting = [str(n) for n in (16, 32, 48, 64, 128, 256) if inputs % n == 0]
        remedy = f"take one of {', '.join(fitting)}" if fitting else "take scales per channel"
        raise UsageError(f"{key}: {name} has rows of {inputs} values, which groups of {group} do not divide: {remedy}")


Range = tuple[Float[Tensor, "shares 1"], Float[Tensor, "shares 1"] | None]
"""Scale, and the code of 0.0 where the range is not symmetric."""


def quantize(weight: Float[Tensor, "outputs inputs"], grid: Grid) -> Quantized:
    """Round a matrix to the nearest values of `grid`."""
    parts = shares(weight.detach().float(), grid)
    found = ranges(parts, grid)
    return Quantized(encode(parts, found, grid).view(weight.shape), *found)


def ranges(parts: Float[Tensor, "shares n"], grid: Grid) -> Range:
    """The range of each share that holds all its values."""
    if grid.symmetric:
        return _nonzero(parts.abs().amax(1, keepdim=True) / largest_code(grid.bits)), None
    low, high = parts.amin(1, keepdim=True).clamp(max=0), parts.amax(1, keepdim=True).clamp(min=0)
    scale = _nonzero((high - low) / (2**grid.bits - 1))
    return scale, (-low / scale).round()


def encode(x: Float[Tensor, "*shape"], found: Range, grid: Grid) -> Int[Tensor, "*shape"]:
    """Codes of the values nearest to x in ranges that broadcast to it; beyond its range, the outermost."""
    scale, zero = found
    if zero is None:
        top = largest_code(grid.bits)
        return (x / scale).round().clamp(-top, top).to(torch.int8)
    return ((x / scale).round() + zero).clamp(0, 2**grid.bits - 1).to(torch.uint8)


def largest_code(bits: int) -> int:
    """Q."""
    return 2 ** (bits - 1) - 1


def _nonzero(scale: Tensor) -> Tensor:
    return torch.where(scale > 0, scale, torch.ones_like(scale))


def num_shares(shape: tuple[int, int], grid: Grid) -> int:
    """Number of scales of a matrix of this shape."""
    outputs, inputs = shape
    return {"tensor": 1, "channel": outputs, "group": outputs * inputs // grid.group}[grid.per]


class IntegerCode(nn.Module):
    """Codes in place of a layer's frozen weight: `codes` (two to a byte up to 4 bits), `scale`, `zero`."""

    def __init__(self, shape: tuple[int, int], grid: Grid) -> None:
        super().__init__()
        self.shape, self.grid = shape, grid
        count = num_shares(shape, grid)
        size = shape[0] * shape[1]
        self.codes: Tensor
        self.register_buffer("codes", torch.empty((size + 1) // 2 if self.packed else size, dtype=torch.uint8))
        self.scale: Tensor
        self.register_buffer("scale", torch.empty(count, 1))
        self.zero: Tensor | None
        self.register_buffer("zero", None if grid.symmetric else torch.empty(count, 1))

    @property
    def packed(self) -> bool:
        """Whether two codes share a byte."""
        return self.grid.bits <= 4

    def take(self, weight: Float[Tensor, "outputs inputs"]) -> None:
        """Hold the codes of this matrix, rounded to nearest."""
        self.hold(quantize(weight, self.grid))

    def hold(self, quantized: Quantized) -> None:
        """Hold these codes."""
        flat = quantized.codes.flatten().view(torch.uint8)
        self.codes.copy_(pack(flat) if self.packed else flat)
        self.scale.copy_(quantized.scale)
        if self.zero is not None and quantized.zero is not None:
            self.zero.copy_(quantized.zero)

    def quantized(self) -> Quantized:
        """What is held."""
        size = self.shape[0] * self.shape[1]
        flat = unpack(self.codes, size) if self.packed else self.codes
        if self.grid.symmetric:
            flat = flat.view(torch.int8)
            if self.packed:
                flat = flat.bitwise_left_shift(4).bitwise_right_shift(4)  # the sign is the fourth bit
        return Quantized(flat.view(self.shape), self.scale, self.zero)

    def forward(self, weight: Tensor) -> Float[Tensor, "outputs inputs"]:
        del weight  # on meta: the codes are the values
        if self.packed:
            return restored(self.codes, integer_levels(self.grid.symmetric), self.scale, self.zero, self.shape)
        return self.quantized().restored()


def put_code(layer: Linear, code: nn.Module) -> None:
    """Compute with a code in place of the layer's weight.

    The weight keeps its shape and no values: whoever multiplies with it past the code fails at once.
    """
    shape = layer.weight.shape
    del layer.weight
    layer.weight = torch.empty(shape, device="meta")  # pyright: ignore[reportAttributeAccessIssue]
    layer.code = code


def pack(codes: UInt8[Tensor, " n"]) -> UInt8[Tensor, " half"]:
    """Two 4-bit codes to a byte, the first in the upper half; an odd one is followed by 0."""
    if len(codes) % 2:
        codes = torch.cat([codes, codes.new_zeros(1)])
    return (codes[0::2] & 15) << 4 | (codes[1::2] & 15)


@cache
def integer_levels(symmetric: bool) -> Float[Tensor, " 16"]:
    """The integer that each 4-bit code stands for: of symmetric ones, the fourth bit is the sign."""
    return torch.tensor([*range(8), *range(-8, 0)] if symmetric else range(16)).float()


def restored(
    codes: UInt8[Tensor, " half"],
    levels: Float[Tensor, " 16"],
    scale: Float[Tensor, "*shares"],
    zero: Float[Tensor, "*shares"] | None,
    shape: tuple[int, int],
) -> Float[Tensor, "outputs inputs"]:
    """(level - zero) * scale of a matrix of packed codes, whose shares are as long as each other."""
    size, count = shape[0] * shape[1], scale.numel()
    if scale.dtype == torch.float32 and supports(scale) and size % (2 * count) == 0:
        return four_bits.restored(codes, levels, scale, zero, size).view(shape)
    values = to_device(levels, codes.device)[unpack(codes, size).long()].view(count, -1)
    return ((values if zero is None else values - zero.view(-1, 1)) * scale.view(-1, 1)).view(shape)


def unpack(packed: UInt8[Tensor, " half"], size: int) -> UInt8[Tensor, " n"]:
    """Inverse of `pack`."""
    return torch.stack([packed >> 4, packed & 15], 1).flatten()[:size]
