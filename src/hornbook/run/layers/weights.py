"""Norms of gradients and weights, and sizes of updates, by layer: of the whole model, whatever ranks hold of it.

Everything is summed as `norm_of_shards` sums the norm for clipping: each part of a parameter once, over the axes along
which ranks hold parts. Nothing is gathered, and nothing changes.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hornbook.model.layers.transfer import fetch
from hornbook.parallel.engine import Engine
from hornbook.parallel.gradients.gradient_norm import divisions_of, sum_over_axes
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.world import Axis

SAMPLED = 2**18
"""About as many values of a parameter are compared before and after an update: a copy of all would need memory."""
_BLOCK = re.compile(r"(encoder\.)?blocks\.\d+|(encoder\.)?\w+")
_COUNTS = 4
"""Sums by layer: squares of gradients, of weights, of sampled weights, of their updates."""


def layer_of(name: str) -> str:
    """The layer that a parameter belongs to: `blocks.3`, `encoder.blocks.0`, `embedding`, `head`."""
    match = _BLOCK.match(name)
    assert match is not None
    return match[0]


def sampled(shard: ParameterShard) -> Tensor:
    """A view of the values of a shard that are compared: every k-th index of the parameter's longest dim.

    The indices are those of the whole parameter, so all divisions of it have the same values between them.
    """
    if not shard.shape or not shard.tensor.numel():
        return shard.tensor.detach()
    dim = max(range(len(shard.shape)), key=lambda each: shard.shape[each])
    every = max(min(math.prod(shard.shape) // SAMPLED, shard.shape[dim]), 1)
    first = min(-shard.start[dim] % every, shard.tensor.shape[dim])
    index = [slice(None)] * dim + [slice(first, None, every)]
    return shard.tensor.detach()[tuple(index)]


@dataclass(frozen=True)
class LayerNorms:
    """By layer, in the order of `WeightStatistics.layers`."""

    gradient_norm: list[float]
    """L2 norm before clipping."""
    weight_norm: list[float]
    """L2 norm before the update."""
    update_ratio: list[float]
    """RMS of the update over RMS of the weights; 0 where the update was refused."""


class WeightStatistics:
    """Measures one step: `begin` between backward and clipping, `end` after the update, on every rank."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.layers = tuple(dict.fromkeys(map(layer_of, engine.shapes)))
        """Names, the same on every rank."""
        self._before: dict[str, Tensor] = {}
        self._sums: dict[tuple[Axis, ...], Tensor] = {}

    def _counted(self) -> Iterator[tuple[str, int, ParameterShard]]:
        """(name, number of its layer, shard) of the parameters that count on this rank."""
        for name, shard in self._engine.shards.items():
            if shard.is_first and shard.tensor.is_floating_point():
                yield name, self.layers.index(layer_of(name)), shard

    @torch.no_grad()
    def begin(self) -> None:
        """Sum what is there before clipping, and copy the values that are compared. No wait for the device."""
        engine, world = self._engine, self._engine.world
        self._sums = {
            axes: torch.zeros(len(self.layers), _COUNTS, dtype=torch.float64, device=world.device)
            for axes in divisions_of(world)
        }
        scale = 1.0 if engine.scaler is None else engine.scaler.scale
        for name, layer, shard in self._counted():
            row = self._sums[shard.axes][layer]
            if shard.tensor.grad is not None:
                row[0] += (_norm(shard.tensor.grad) / scale).double().square()
            row[1] += _norm(shard.tensor).double().square()
            if shard.tensor.requires_grad:
                self._before[name] = sampled(shard).clone()

    @torch.no_grad()
    def end(self) -> LayerNorms:
        """What was found; the host waits for the device."""
        for name, layer, shard in self._counted():
            if name in self._before:
                row, before = self._sums[shard.axes][layer], self._before[name]
                row[2] += _norm(before).double().square()
                row[3] += _norm(sampled(shard).float() - before.float()).double().square()
        self._before = {}
        total = torch.stack([*sum_over_axes(self._sums, self._engine.world).values()]).sum(0)
        gradients, weights, sample, updates = total.sqrt().unbind(1)
        ratios = torch.where(sample > 0, updates / sample, torch.zeros_like(updates))
        found, size = fetch(*torch.cat([gradients, weights, ratios]).unbind()), len(self.layers)
        return LayerNorms(found[:size], found[size : 2 * size], found[2 * size :])


def _norm(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
