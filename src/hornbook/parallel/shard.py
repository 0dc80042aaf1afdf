"""Shards: the parts of parameters and of the optimizer's state that a rank holds.

Data parallelism, and later tensor parallelism, give each rank one rectangle of each parameter. The optimizer updates
these shards and a checkpoint writes each at its place in the whole parameter, so neither knows how the model was
divided. The optimizer's state is divided as its parameters are, as far as it has their dims.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hornbook.errors import IntegrityError, UsageError
from hornbook.optim.config.rule import StateTensor
from hornbook.optim.optimizer import Optimizer

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Shard:
    """The rectangle of a tensor that this rank holds."""

    tensor: Tensor
    """Plain (no DTensor) and contiguous; may be empty."""
    shape: Shape
    """Shape of the whole tensor."""
    start: Shape
    """First index of the rectangle in the whole tensor, per dim; its shape is `tensor.shape`."""
    is_primary: bool = True
    """Whether this rank is the primary replica: of the ranks that hold the same rectangle, the one that saves it."""

    @property
    def slices(self) -> tuple[slice, ...]:
        """The rectangle as an index into the whole tensor."""
        return tuple(slice(first, first + size) for first, size in zip(self.start, self.tensor.shape, strict=True))


@dataclass(frozen=True)
class ParameterShard(Shard):
    """The rectangle of one parameter that this rank holds and updates."""

    tensor: nn.Parameter
    """In the model's own storage."""


def whole_shard(parameter: nn.Parameter, is_primary: bool = True) -> ParameterShard:
    """A parameter that this rank holds whole."""
    return ParameterShard(parameter, tuple(parameter.shape), (0,) * parameter.dim(), is_primary)


def state_shards(optimizer: Optimizer, shards: Mapping[str, ParameterShard]) -> dict[str, Shard]:
    """`PARAMETER.NAME` -> this rank's shard of each tensor of the optimizer's state.

    Raises UsageError where a block of the state would lie on two ranks.
    """
    found = {}
    for name, declared, tensor in optimizer.state():
        shard = shards[name]
        if declared.extent == "blocks":
            _check_blocks(name, declared, shard)
        found[f"{name}.{declared.name}"] = Shard(
            tensor, declared.shape(shard.shape), declared.shape(shard.start), _saves(declared, shard)
        )
    return found


def _saves(declared: StateTensor, shard: ParameterShard) -> bool:
    """Whether this rank saves the state of its shard: of the shards that hold the same state, the first does."""
    first = all(shard.start[dim] == 0 and shard.tensor.shape[dim] for dim in declared.dropped_dims(len(shard.shape)))
    return shard.is_primary and first


def _check_blocks(name: str, declared: StateTensor, shard: ParameterShard) -> None:
    if not shard.tensor.numel():
        return
    first, size, whole = shard.start[-1], shard.tensor.shape[-1], shard.shape[-1]
    if first % declared.block or ((first + size) % declared.block and first + size != whole):
        raise UsageError(
            f"optim.kind: a rank would hold elements {first} to {first + size} of {name} {list(shard.shape)}, and its "
            f"{declared.name} is kept for blocks of {declared.block}: use --parallel.shard none, or fewer ranks to "
            "share the model (--parallel.replicas)"
        )


def assign_primaries(sizes: Mapping[str, int], replicas: int) -> dict[str, int]:
    """Name -> number of its primary replica, so that all save about as much: the largest first, to the least loaded."""
    loads, primaries = [0] * replicas, {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        primaries[name] = loads.index(min(loads))
        loads[primaries[name]] += sizes[name]
    return primaries


def check_cover(wanted: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    """Raise IntegrityError unless both have the same names with the same shapes."""
    problems = [f"{name} is missing" for name in wanted if name not in found]
    problems += [f"{name} is not of this model" for name in found if name not in wanted]
    problems += [
        f"{name} has shape {list(found[name])}, not {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if problems:
        more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise IntegrityError("the checkpoint does not fit: " + "; ".join(problems[:5]) + more)


def fill_shards(shards: Mapping[str, ParameterShard], stream: Iterable[tuple[str, Tensor]]) -> None:
    """Copy shards out of whole tensors; raises IntegrityError unless they cover the model exactly."""
    found = {}
    with torch.no_grad():
        for name, tensor in stream:
            found[name] = tuple(tensor.shape)
            if name in shards and shards[name].shape == tensor.shape:
                shards[name].tensor.copy_(tensor[shards[name].slices])
    check_cover({name: shard.shape for name, shard in shards.items()}, found)
