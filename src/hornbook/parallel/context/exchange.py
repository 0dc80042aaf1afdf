"""Messages between the ranks of the axis `context`: to the next one in a ring, and all to all."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]


@dataclass(frozen=True)
class Ring:
    """The ranks of an axis, each of which sends to the next; the last one sends to the first."""

    group: ProcessGroup | None
    rank: int
    size: int

    def start(self, tensors: list[Tensor], tag: int) -> "Passing":
        """Begin to send tensors to the next rank and to receive as large ones from the rank before."""
        sent = [tensor.contiguous() for tensor in tensors]
        received = [torch.empty_like(tensor) for tensor in sent]
        after, before = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        peers = {"group": self.group, "tag": tag}
        works = [dist.P2POp(dist.isend, each, group_peer=after, **peers) for each in sent]
        works += [dist.P2POp(dist.irecv, each, group_peer=before, **peers) for each in received]
        return Passing(sent, received, dist.batch_isend_irecv(works))

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

    def wait(self) -> list[Tensor]:
        """What the rank before has sent."""
        for work in self.works:
            work.wait()
        return self.received


class AllToAll(torch.autograd.Function):
    """x [ranks, ...]: entry k goes to rank k of the group -> [ranks, ...]: entry k is from rank k."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return _all_to_all(x, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        return _all_to_all(grads[0], ctx.group), None


def _all_to_all(x: Tensor, group: ProcessGroup | None) -> Tensor:
    x = x.contiguous()
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x, group=group)
    return received


class SumOfParts(torch.autograd.Function):
    """The sum of x over the ranks of a group, each of which goes on to compute the same of it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup | None, size: int) -> Tensor:
        ctx.size = size
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor):
        # The gradients of all ranks would be added, and they are equal.
        return grads[0] * ctx.size, None, None
