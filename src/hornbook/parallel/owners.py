"""Whole parameters for update rules that need them (`UpdateRule.whole`), where ranks share each parameter.

Every such parameter has an owner among the ranks that share it, so that all own about as many values. Before an update
the owner collects values and gradients, afterwards it hands the values back. It keeps the state of the parameter, so a
rank has about its share of the state, as with ZeRO; the update computes what one process computes, bit for bit.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hornbook.optim.config.rule import Shape
from hornbook.parallel.parameter_shard import ParameterShard, assign_primaries
from hornbook.parallel.world import Axis, World, wide_axes

SHARING: tuple[Axis, ...] = ("shard", "tensor", "expert")
"""Axes whose ranks share parameters; some they all hold whole."""


@dataclass(frozen=True)
class _Owned:
    """A parameter that is updated whole."""

    shard: ParameterShard
    """This rank's part in the model."""
    whole: nn.Parameter
    """The whole parameter on its owner; empty elsewhere."""
    owner: int
    """Number of the owner among the ranks that share the parameter."""
    regions: list[tuple[slice, ...]]
    """The part of each of these ranks, as an index into the whole."""
    is_primary: bool
    """Whether the state is saved from among these ranks."""


class Owners:
    """The parameters of one rank as an optimizer sees them (`optim.optimizer.WholeParameters`)."""

    on_host = False

    def __init__(self, shards: Mapping[str, ParameterShard], world: World) -> None:
        """`shards` of all parameters, as the engine has them."""
        self._world, self._shards = world, shards
        self._owned = list[_Owned]()
        self.shards = dict(shards)
        """What the optimizer's state is divided like: whole or empty for parameters that are updated whole."""

    def take(self, names: Iterable[str]) -> dict[str, nn.Parameter]:
        """What this rank updates: of the parameters `names` those it owns whole, the others empty; else its shards."""
        names = list(names) if self._world.axis_size(SHARING) > 1 else []
        self.shards, self._owned = dict(self._shards), []
        sizes = {name: prod(self.shards[name].shape) for name in names}
        owners = assign_primaries(sizes, self._world.axis_size(SHARING))
        for name in names:
            owned = self._own(self.shards[name], owners[name])
            self._owned.append(owned)
            empty = owned.owner != self._world.axis_rank(SHARING)
            shape, primary = owned.shard.shape, owned.is_primary
            start = (shape[0], *(0 for _ in shape[1:])) if empty else (0,) * len(shape)
            axes, copy = wide_axes((*SHARING, *owned.shard.axes), self._world.sizes), owned.shard.stage_copy
            self.shards[name] = ParameterShard(owned.whole, shape, start, primary, axes, stage_copy=copy)
        return {name: shard.tensor for name, shard in self.shards.items() if shard.tensor.requires_grad}

    def starts(self) -> dict[str, Shape]:
        """First index of each tensor of `take` in its whole parameter."""
        return {name: shard.start for name, shard in self.shards.items()}

    def _own(self, shard: ParameterShard, owner: int) -> _Owned:
        mine = owner == self._world.axis_rank(SHARING)
        shape: Shape = shard.shape if mine else (0, *shard.shape[1:])
        told = [*shard.start, *shard.tensor.shape, int(shard.is_primary)]
        own_slice = torch.tensor(told, device=self._world.device)
        everyone = [each.tolist() for each in self._world.all_gather(own_slice, SHARING)]
        dims = len(shard.shape)
        regions = [
            tuple(slice(first, first + size) for first, size in zip(each[:dims], each[dims:-1], strict=True))
            for each in everyone
        ]
        is_primary = any(each[-1] for each in everyone)
        return _Owned(shard, nn.Parameter(shard.tensor.new_empty(shape)), owner, regions, is_primary)

    def gather(self) -> None:
        """Bring values and gradients of the whole parameters from the shards of all ranks."""
        pairs = [(each, each.whole.detach(), each.shard.tensor.detach()) for each in self._owned]
        for each in self._owned:
            gradient = each.shard.tensor.grad
            assert gradient is not None, "forward_backward comes before step"
            each.whole.grad = torch.empty_like(each.whole)
            pairs.append((each, each.whole.grad, gradient))
        self._exchange(pairs, to_owner=True)

    def scatter(self) -> None:
        """Bring the values back, and drop the gradients."""
        self._exchange(
            [(each, each.whole.detach(), each.shard.tensor.detach()) for each in self._owned], to_owner=False
        )
        for owned in self._owned:
            owned.whole.grad = None

    def _exchange(self, pairs: list[tuple[_Owned, Tensor, Tensor]], *, to_owner: bool) -> None:
        """Copy between (whole tensor, this rank's part) of each parameter, in one batch of messages."""
        operations, copies = list[dist.P2POp](), list[tuple[Tensor, Tensor]]()
        rank, group = self._world.axis_rank(SHARING), self._world.group(SHARING)
        for tag, (owned, whole, part) in enumerate(pairs):
            for other, region in self._peers(owned, to_owner=to_owner):
                mine = whole[region] if rank == owned.owner else part
                if other == rank:
                    target, source = (mine, part) if to_owner else (part, mine)
                    target.copy_(source)
                    continue
                sends = to_owner != (rank == owned.owner)
                message = mine.contiguous() if sends else torch.empty_like(mine, memory_format=torch.contiguous_format)
                call = dist.isend if sends else dist.irecv
                operations.append(dist.P2POp(call, message, group=group, tag=tag, group_peer=other))
                copies += [] if sends else [(mine, message)]
        if operations:
            sent = sum(each.tensor.nbytes for each in operations if each.op is dist.isend)
            with self._world.collective(SHARING, "send", sent):
                for work in dist.batch_isend_irecv(operations):
                    work.wait()
        for target, message in copies:
            target.copy_(message)

    def _peers(self, owned: _Owned, *, to_owner: bool) -> Iterator[tuple[int, tuple[slice, ...]]]:
        """(rank that this one exchanges a part with, the part), without parts that have no values.

        Of ranks that hold the same part, one gives it to the owner: the owner itself, or the first.
        """
        rank, owner, regions = self._world.axis_rank(SHARING), owned.owner, owned.regions
        for giver in range(len(regions)) if rank == owner else [rank]:
            region = regions[giver]
            first = owner if regions[owner] == region else regions.index(region)
            if all(each.stop > each.start for each in region) and (giver == first or not to_owner):
                yield (giver if rank == owner else owner), region
