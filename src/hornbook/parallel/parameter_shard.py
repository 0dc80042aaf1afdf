"""Shards: the parts of parameters and of the optimizer's state that a rank holds.

Every form of parallelism gives each rank one rectangle of each parameter, or nothing of it. The optimizer updates these
shards and a checkpoint writes each at its place in the whole parameter, so neither knows how the model was divided. The
optimizer's state is divided as its parameters are, as far as it has their dims.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor, nn

from hornbook.errors import IntegrityError, UsageError
from hornbook.optim.config.rule import StateTensor
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.world import AXES, Axis, World, others, wide_axes

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
    axes: tuple[Axis, ...] = ()
    """Axes whose ranks hold other parts of the parameter, or none of it: its squares are summed over them."""
    copy: int = 0
    """Number of this copy among ranks of a stage that differ along `axes` and hold the same part."""
    stage_copy: int = 0
    """Number of this copy among stages that hold the parameter."""

    @property
    def is_first(self) -> bool:
        """Whether it is the copy that counts in sums over `axes`."""
        return not self.copy and not self.stage_copy


@dataclass(frozen=True)
class Division:
    """What a rank holds of a parameter before data parallelism divides that further."""

    shape: Shape
    """Shape of the whole parameter."""
    start: Shape
    """First index in it of what the rank holds, per dim."""
    axes: tuple[Axis, ...]
    """Axes whose ranks hold other parts of it, or none of it."""
    copy: int = 0
    """Number of this copy, where ranks of a stage that differ along `axes` hold the same part: the first saves it."""
    stage_copy: int = 0
    """Number of this copy among stages that hold the parameter."""

    def of_stage(self, copy: int) -> "Division":
        """The same, where the ranks of other stages hold nothing of it, or another copy."""
        return replace(self, axes=("pipeline", *self.axes), stage_copy=copy)


Divisions = dict[str, Division]
"""By name of the parameter; those that every rank holds whole are not in it."""


def local_shards(
    parameters: Mapping[str, nn.Parameter],
    divisions: Divisions,
    world: World,
    sharded: Mapping[str, tuple[Shape, Shape]] | None = None,
) -> dict[str, ParameterShard]:
    """This rank's shards of the parameters it holds. Ranks that hold the same share the saving of it.

    sharded: where fully_shard divided each parameter along `shard`, the shape of what the rank would hold without it,
    and the first index of its part in that.
    """
    parts = sharded or {name: (tuple(each.shape), (0,) * each.dim()) for name, each in parameters.items()}
    sizes, found = {name: prod(shape) for name, (shape, _) in parts.items()}, {}
    known = {name: divisions.get(name) or Division(shape, (0,) * len(shape), ()) for name, (shape, _) in parts.items()}
    for axes in dict.fromkeys(each.axes for each in known.values()):
        along = wide_axes(axes if sharded is None else (*axes, "shard"), world.sizes)
        copies = others(AXES, along)
        same = {name: size for name, size in sizes.items() if known[name].axes == axes}
        primaries, own = assign_primaries(same, world.axis_size(copies)), world.axis_rank(copies)
        for name in same:
            at, tensor = known[name], parameters[name]
            start = tuple(map(sum, zip(at.start, parts[name][1], strict=True)))
            primary = primaries[name] == own and not at.copy and not at.stage_copy
            found[name] = ParameterShard(tensor, at.shape, start, primary, along, at.copy, at.stage_copy)
    return {name: found[name] for name in parameters}


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


def of_all_stages(shards: Mapping[str, Shard], world: World) -> dict[str, tuple[Shape, torch.dtype]]:
    """Shape of the whole and dtype of each tensor, those of other stages included; every rank calls it."""
    found = {name: (each.shape, each.tensor.dtype) for name, each in shards.items()}
    return {name: each for stage in world.all_gather_values(found, ["pipeline"]) for name, each in stage.items()}


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
            "share the model (--parallel.replicas, --parallel.tensor)"
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


def fill_shards(
    shards: Mapping[str, ParameterShard], stream: Iterable[tuple[str, Tensor]], shapes: Mapping[str, Shape]
) -> None:
    """Copy shards out of whole tensors; raises IntegrityError unless they cover a model of `shapes` exactly."""
    found = {}
    with torch.no_grad():
        for name, tensor in stream:
            found[name] = tuple(tensor.shape)
            if name in shards and shards[name].shape == tensor.shape:
                shards[name].tensor.copy_(tensor[shards[name].slices])
    check_cover(shapes, found)
