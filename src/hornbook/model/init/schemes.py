"""Which distribution each logical matrix begins with: one function per scheme, one table of schemes.

A logical matrix is what its formula is about: query, key and value apart, the experts of a layer one by one, whatever
lies together in memory. Norms begin as the identity and vectors (biases) at zero under every scheme.

| scheme | embedding, head, positions | query, key | value, gate, up | out, down: they write to the residual stream |
|---|---|---|---|---|
| normal | s | s | s | s |
| scaled_normal | s (positions: position_std) | s | s | s / sqrt(branches) |
| megatron, cut | s | s | s | s / sqrt(branches) |
| small | sqrt(2 / 5d) | sqrt(2 / 5d) | sqrt(2 / 5d) | 2 / (layers sqrt(d)) |
| xavier, uniform | d^-1/2 | (2 / (in + out))^1/2 | as query | as query |
| he | d^-1/2 | (2 / in)^1/2 | as query | as query |
| t5 | 1 (relative positions: d^-1/2) | query (in k)^-1/2, key in^-1/2 | in^-1/2 | in^-1/2 |
| tfixup | d^-1/2 f (head: d^-1/2) | as xavier | as xavier, times f | as xavier, times f |
| mup | s | s / sqrt(m) | s / sqrt(m) | s / sqrt(m), without base_layers also / sqrt(branches) |
| lsuv | s | orthonormal | orthonormal | orthonormal |

Entries are standard deviations: s is `std`, d the width, k the width of a head, m = d / base_width; branches are what
the stack adds up in its stream, 2 x layers (3 x where each layer also attends to an encoder). The scaling of
what writes to the stream is GPT-2's (Radford et al. 2019, section 2.3): its variance stays of order one at any depth.
T-Fixup's f is 0.67 L^-1/4 in an encoder and (9 L)^-1/4 in the decoder it feeds, the embedding included (Huang et al.
2020, section 3.2); for a stack alone, which the paper does not treat, we take the encoder's throughout.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hornbook.model.config import init_config as config_init
from hornbook.model.config import model_config as config
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.init_config import Distribution, NormalValues

STREAM_WRITERS = {("attention", "out"), ("cross", "out"), ("mlp", "down")}
"""Sublayer and last part of the names of projections that write to the residual stream."""
_GENERATOR = "head.generator."


@dataclass(frozen=True)
class Matrix:
    """One logical matrix of a model, or a vector."""

    name: str
    """As its parameter; an expert's ends with its number."""
    role: str
    """By `parameter_roles`."""
    shape: tuple[int, ...]
    """[outputs, inputs]."""
    model: config.ModelConfig
    """Configuration of the whole model."""

    @cached_property
    def path(self) -> list[str]:
        """Parts of the name inside its stack, without the number of an expert."""
        name = self.name.removeprefix("encoder.").removeprefix("mtp.").removeprefix(_GENERATOR)
        parts = name.removesuffix(".weight").split(".")
        return parts[:-1] if parts[-1].isdigit() else parts

    @property
    def part(self) -> str:
        """What it is called in its module."""
        return self.path[-1]

    @property
    def sublayer(self) -> str:
        """`attention`, `cross`, `mlp` or the like; empty outside of blocks."""
        return self.path[2] if self.path[0] == "blocks" else ""

    @property
    def in_encoder(self) -> bool:
        """Whether it belongs to the encoder of an encoder-decoder."""
        return self.name.startswith("encoder.")

    @cached_property
    def stack(self) -> config.ModelConfig:
        """Configuration of its stack; in a block as that layer sees it."""
        stack = self.model.encoder if self.in_encoder else self.model
        if self.name.startswith(_GENERATOR):
            stack = self.model.head.generator_of(self.model) or stack
        return stack.layer(int(self.path[1])) if self.path[0] == "blocks" else stack

    @property
    def writes_to_stream(self) -> bool:
        """Whether its outputs are added to the residual stream."""
        return (self.sublayer, self.part) in STREAM_WRITERS

    @property
    def branches(self) -> int:
        """How many branches its stack adds up in the residual stream."""
        crossed = self.model.kind == "encoder_decoder" and not self.in_encoder
        return (3 if crossed else 2) * self.stack.layers


def _scaled_normal(matrix: Matrix, scheme: config_init.ScaledNormal) -> Distribution:
    if matrix.role == "position":
        return NormalValues(std=scheme.position_std)
    return NormalValues(std=_scaled(matrix, scheme.std))


def _scaled(matrix: Matrix, std: float) -> float:
    return std / math.sqrt(matrix.branches) if matrix.writes_to_stream else std


def _megatron(matrix: Matrix, scheme: config_init.Megatron) -> Distribution:
    return config_init.TruncatedValues(std=_scaled(matrix, scheme.std), cut=scheme.cut)


def _small(matrix: Matrix) -> Distribution:
    width = matrix.model.width
    if matrix.writes_to_stream:
        return NormalValues(std=2 / (matrix.stack.layers * math.sqrt(width)))
    return NormalValues(std=math.sqrt(2 / (5 * width)))


def _xavier(matrix: Matrix, scheme: config_init.Xavier) -> Distribution:
    return _glorot(matrix, scheme.gain) if matrix.role == "matrix" else _by_width(matrix)


def _glorot(matrix: Matrix, gain: float) -> Distribution:
    return config_init.UniformValues(bound=gain * math.sqrt(6 / (matrix.shape[-1] + matrix.shape[0])))


def _by_width(matrix: Matrix, factor: float = 1.0) -> Distribution:
    return NormalValues(std=factor / math.sqrt(matrix.model.width))


def _he(matrix: Matrix) -> Distribution:
    return NormalValues(std=math.sqrt(2 / matrix.shape[-1])) if matrix.role == "matrix" else _by_width(matrix)


def _t5(matrix: Matrix, scheme: config_init.T5) -> Distribution:
    if matrix.part == "bias":
        return _by_width(matrix, scheme.factor)
    if matrix.role != "matrix":
        return NormalValues(std=scheme.factor)
    attention, std = matrix.stack.attention, scheme.factor / math.sqrt(matrix.shape[-1])
    if matrix.part == "query" and isinstance(attention, FullAttentionConfig):
        # T5 has no factor of the scores (scale = 1): its query holds it. Where there is one, the query need not.
        scale = matrix.stack.head_dim**-0.5 if attention.scale is None else attention.scale
        std *= matrix.stack.head_dim**-0.5 / scale
    return NormalValues(std=std)


def _tfixup(matrix: Matrix) -> Distribution:
    if matrix.role == "head":
        return _by_width(matrix)
    decoding = matrix.model.kind == "encoder_decoder" and not matrix.in_encoder
    factor = (9 * matrix.stack.layers) ** -0.25 if decoding else 0.67 * matrix.stack.layers**-0.25
    if matrix.role != "matrix":
        return _by_width(matrix, factor)
    scaled = matrix.part == "value" or matrix.writes_to_stream or matrix.part in ("gate", "up")
    return _glorot(matrix, factor if scaled else 1.0)


def _mup(matrix: Matrix, scheme: config_init.MuP) -> Distribution:
    if matrix.role != "matrix":
        return NormalValues(std=scheme.std)
    std = scheme.std * math.sqrt(scheme.base_width / matrix.model.width)
    return NormalValues(std=std if scheme.base_layers else _scaled(matrix, std))


def _lsuv(matrix: Matrix, scheme: config_init.LSUV) -> Distribution:
    return config_init.OrthogonalValues() if matrix.role == "matrix" else NormalValues(std=scheme.std)


SCHEMES: dict[type, Callable[[Matrix, Any], Distribution]] = {
    config_init.Normal: lambda _, scheme: NormalValues(std=scheme.std),
    config_init.ScaledNormal: _scaled_normal,
    config_init.Megatron: _megatron,
    config_init.SmallInit: lambda matrix, _: _small(matrix),
    config_init.Xavier: _xavier,
    config_init.He: lambda matrix, _: _he(matrix),
    config_init.T5: _t5,
    config_init.TFixup: lambda matrix, _: _tfixup(matrix),
    config_init.MuP: _mup,
    config_init.LSUV: _lsuv,
}
"""Type of the scheme's config -> distribution of a matrix, embedding, head or table of positions under it."""


def distribution(matrix: Matrix) -> Distribution:
    """What a logical matrix or vector begins with under its model's scheme, overrides aside."""
    if matrix.role == "norm":
        return config_init.ConstantValues(value=0.0 if matrix.name.endswith(".bias") else 1.0)
    if matrix.role == "vector":
        return config_init.ConstantValues(value=0.0)
    return SCHEMES[type(matrix.model.init)](matrix, matrix.model.init)
