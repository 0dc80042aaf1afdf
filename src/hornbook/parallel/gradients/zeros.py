"""Weights that are 0 and stay 0: what `hornbook prune --sparse` took out, while the rest is trained.

No mask is kept: a weight of a layer whose `keeps_zeros` is set and that is 0 before an update is 0 after it. So a
resume goes on bit for bit from the weights alone, and each rank looks at its own shards. The gradient of such a weight
is 0 before it is clipped, so that norm and moments do not know of it; an optimizer whose update mixes the gradients of
a matrix (Muon, SOAP) moves it all the same, and it is put back.
"""

import contextlib
import functools
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from hornbook.model.layers.linear import Linear
from hornbook.parallel.gradients.gradient_norm import sum_of_shards
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.world import World


class Zeros:
    """The shards of one rank in which zeros stay."""

    def __init__(self, model: nn.Module, shards: Mapping[str, ParameterShard], world: World) -> None:
        layers = model.named_modules()
        names = {f"{name}.weight" for name, each in layers if isinstance(each, Linear) and each.keeps_zeros}
        self._shards = [shard for name, shard in shards.items() if name in names]
        self._world = world

    @torch.no_grad()
    def leave_gradients(self) -> None:
        """Set the gradients of weights that are 0 to 0."""
        for shard in self._shards:
            if shard.tensor.grad is not None:
                shard.tensor.grad.masked_fill_(shard.tensor == 0, 0.0)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Around an update: what is 0 before it is 0 after it."""
        marked = [shard.tensor.detach() == 0 for shard in self._shards]
        yield
        with torch.no_grad():
            for shard, zero in zip(self._shards, marked, strict=True):
                shard.tensor.masked_fill_(zero, 0.0)

    def share(self) -> float | None:
        """Of the weights of such layers, on all ranks, that are 0; None where there is no such layer."""
        pairs = [(shard, shard.tensor.detach()) for shard in self._shards]
        zeros, values = (float(sum_of_shards(pairs, self._world, count)) for count in (_zeros, _values))
        return zeros / values if values else None


def _zeros(tensors: Sequence[Tensor]) -> Tensor:
    return functools.reduce(torch.add, [(each == 0).sum() for each in tensors]).double()


def _values(tensors: Sequence[Tensor]) -> Tensor:
    return torch.tensor(sum(each.numel() for each in tensors), dtype=torch.float64)
