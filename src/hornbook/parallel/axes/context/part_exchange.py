"""Messages between the ranks of the axis `context`: to the next one in a ring, and all to all."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hornbook.parallel.traffic.step_clock import StepClock
from hornbook.parallel.traffic.traffic import Flow
from hornbook.parallel.world import Axis, World

CONTEXT: tuple[Axis, ...] = ("context",)
ROUND: Flow = ("context", "send")


@dataclass(frozen=True)
class Ring:
    """The ranks of the axis, each of which sends to the next; the last one sends to the first."""

    world: World

    @property
    def rank(self) -> int:
        """Number of this rank along the axis."""
        return self.world.axis_rank(CONTEXT)

    @property
    def size(self) -> int:
        """Ranks of the axis."""
        return self.world.axis_size(CONTEXT)

    def start(self, tensors: list[Tensor], tag: int) -> "Passing":
        """Begin to send tensors to the next rank and to receive as large ones from the rank before."""
        sent = [tensor.contiguous() for tensor in tensors]
        received = [torch.empty_like(tensor) for tensor in sent]
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        peers = {"group": self.world.group(CONTEXT), "tag": tag}
        works = [dist.P2POp(dist.isend, each, group_peer=after, **peers) for each in sent]
        works += [dist.P2POp(dist.irecv, each, group_peer=before, **peers) for each in received]
        ended = self.world.clock.traffic.launch(*ROUND, sum(each.nbytes for each in sent))
        return Passing(sent, received, dist.batch_isend_irecv(works), self.world.clock, ended)

    def rounds(self, tensors: list[Tensor]) -> Iterator[tuple[int, list[Tensor]]]:
        """(rank, its tensors) of every rank, this one's first; the next ones come while these are looked at."""
        for number in range(self.size):
            passing = self.start(tensors, 0) if number < self.size - 1 else None
            yield (self.rank - number) % self.size, tensors
            if passing is not None:
                tensors = passing.wait()


@dataclass(frozen=True)
class Passing:
    """Messages under way."""

    sent: list[Tensor]
    """Held until they are out."""
    received: list[Tensor]
    works: list[Any]
    clock: StepClock
    ended: Callable[[], None]
    """Tells the clock's traffic."""

    def wait(self) -> list[Tensor]:
        """What the rank before has sent."""
        with self.clock.waiting(ROUND):
            for work in self.works:
                work.wait()
        self.ended()
        return self.received


class AllToAll(torch.autograd.Function):
    """x [ranks, ...]: entry k goes to rank k of the axis -> [ranks, ...]: entry k is from rank k."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World) -> Tensor:
        ctx.world = world
        return _all_to_all(x, world)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return _all_to_all(grads[0], ctx.world), None


def _all_to_all(x: Tensor, world: World) -> Tensor:
    x = x.contiguous()
    received = torch.empty_like(x)
    with world.collective(CONTEXT, "all-to-all", x.nbytes):
        dist.all_to_all_single(received, x, group=world.group(CONTEXT))
    return received


class SumOfParts(torch.autograd.Function):
    """The sum of x over the ranks of the axis, each of which goes on to compute the same of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, world: World) -> Tensor:
        ctx.size = world.axis_size(CONTEXT)
        return world.all_reduce_sum(x.clone(), CONTEXT)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        # The gradients of all ranks would be added, and they are equal.
        return grads[0] * ctx.size, None
