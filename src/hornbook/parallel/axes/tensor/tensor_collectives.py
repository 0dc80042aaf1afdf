"""What crosses the ranks of the axis `tensor`, forward and backward.

Each rank computes its part of a pair of products (Shoeybi et al. 2019, arXiv 1909.08053): the input goes to all ranks,
and what they make of it is summed.

| function | forward | backward |
|---|---|---|
| `copy` | the same | sum over ranks |
| `reduce` | sum over ranks | the same |
| `total` | sum over ranks | sum over ranks |
| `gather` | parts of the time, one from each rank, become the whole | sum over ranks, of which a rank keeps its part |
| `scatter` | sum over ranks, of which a rank keeps its part | parts become the whole |
| `join` | parts become the whole | the rank's part: all ranks compute the same from here on |
| `split` | the rank's part | parts become the whole |

The last four are those of sequence parallelism (Korthikanti et al. 2022, arXiv 2205.05198). Parts have equal lengths:
the time is filled up with zeros, which `gather` and `join` cut off.

Nothing here can be compiled: a compiled block is cut at each of them.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hornbook.kernels.torch_versions import uncompiled
from hornbook.parallel.traffic.reduce_scatter import reduce_scatter_
from hornbook.parallel.world import Axis, World

AXIS: tuple[Axis, ...] = ("tensor",)


@uncompiled
def copy(x: Tensor, world: World) -> Tensor:
    """Input of products of which each rank computes a part."""
    return _Copy.apply(x, world)


@uncompiled
def reduce(x: Tensor, world: World) -> Tensor:
    """Sum of the parts of a product."""
    return _Reduce.apply(x, world)


@uncompiled
def total(x: Tensor, world: World) -> Tensor:
    """Sum over ranks of what each goes on to use in its own way."""
    return _Total.apply(x, world)


@uncompiled
def gather(x: Float[Tensor, "batch part width"], time: int, world: World) -> Float[Tensor, "batch time width"]:
    """Whole rows of length `time`, as input of products of which each rank computes a part."""
    return _Gather.apply(x, time, world, True)


@uncompiled
def scatter(x: Float[Tensor, "batch time width"], world: World) -> Float[Tensor, "batch part width"]:
    """This rank's part of the rows of a sum over ranks."""
    return _Scatter.apply(x, world, True)


@uncompiled
def join(x: Float[Tensor, "batch part width"], time: int, world: World) -> Float[Tensor, "batch time width"]:
    """Whole rows of length `time`, of which every rank computes the same."""
    return _Gather.apply(x, time, world, False)


@uncompiled
def split(x: Float[Tensor, "batch time width"], world: World) -> Float[Tensor, "batch part width"]:
    """This rank's part of rows that every rank has whole."""
    return _Scatter.apply(x, world, False)


def part_length(time: int, world: World) -> int:
    """Positions of each part of a row."""
    return -(-time // world.axis_size(AXIS))


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World) -> Tensor:
        ctx.world = world
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return _summed(grads[0], ctx.world), None


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World) -> Tensor:
        del ctx
        return _summed(x, world)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        del ctx
        return grads[0], None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World) -> Tensor:
        ctx.world = world
        return _summed(x, world)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return _summed(grads[0], ctx.world), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, time: int, world: World, sums: bool) -> Tensor:
        ctx.world, ctx.sums = world, sums
        return _joined(x, time, world)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return _own(grads[0], ctx.world, sums=ctx.sums), None, None, None


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World, sums: bool) -> Tensor:
        ctx.world, ctx.time = world, x.shape[1]
        return _own(x, world, sums=sums)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return _joined(grads[0], ctx.time, ctx.world), None, None


def _summed(x: Tensor, world: World) -> Tensor:
    return world.all_reduce_sum(x.clone(memory_format=torch.contiguous_format), AXIS)


def _joined(x: Tensor, time: int, world: World) -> Tensor:
    length = x.shape[1]
    parts = world.all_gather(x, AXIS)
    return torch.cat([part[:, : max(time - length * i, 0)] for i, part in enumerate(parts)], 1)


def _own(x: Tensor, world: World, *, sums: bool) -> Tensor:
    """This rank's part of rows [batch, time, ...], or of their sum over ranks."""
    ranks, rank, length = world.axis_size(AXIS), world.axis_rank(AXIS), part_length(x.shape[1], world)
    missing = ranks * length - x.shape[1]
    if missing:
        x = torch.cat([x, x.new_zeros(x.shape[0], missing, *x.shape[2:])], 1)
    parts = x.split(length, 1)
    if not sums:
        return parts[rank].contiguous()
    found = torch.empty_like(parts[rank], memory_format=torch.contiguous_format)
    with world.collective(AXIS, "reduce-scatter", x.nbytes):
        reduce_scatter_(found, torch.cat(parts), world.group(AXIS))
    return found
