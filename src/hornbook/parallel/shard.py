"""The part of each parameter that a rank holds.

Data parallelism, and later tensor parallelism, give each rank one rectangle of each parameter. The optimizer updates
these shards and a checkpoint writes each at its place in the whole parameter, so neither knows how the model was
divided.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class ParameterShard:
    """The rectangle of one parameter that this rank holds and updates."""

    tensor: nn.Parameter
    """Plain (no DTensor) and contiguous, in the model's own storage; may be empty."""
    shape: tuple[int, ...]
    """Shape of the whole parameter."""
    start: tuple[int, ...]
    """First index of the rectangle in the whole parameter, per dim; its shape is `tensor.shape`."""
    is_primary: bool = True
    """Whether this rank is the primary replica: of the ranks that hold the same rectangle, the one that saves it."""

    @property
    def slices(self) -> tuple[slice, ...]:
        """The rectangle as an index into the whole parameter."""
        return tuple(slice(first, first + size) for first, size in zip(self.start, self.tensor.shape, strict=True))


def whole_shard(parameter: nn.Parameter, is_primary: bool = True) -> ParameterShard:
    """A parameter that this rank holds whole."""
    return ParameterShard(parameter, tuple(parameter.shape), (0,) * parameter.dim(), is_primary)


def assign_primaries(sizes: Mapping[str, int], replicas: int) -> dict[str, int]:
    """Name -> number of its primary replica, so that all save about as much: the largest first, to the least loaded."""
    loads, primaries = [0] * replicas, {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        primaries[name] = loads.index(min(loads))
        loads[primaries[name]] += sizes[name]
    return primaries
