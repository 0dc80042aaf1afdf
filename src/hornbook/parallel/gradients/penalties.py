"""Penalties on weights as terms of the objective, added to the gradients once a step:

    l1 * sum |w|        l2 / 2 * sum w^2        over the parameters that decay
    anchor / 2 * sum F (w - w*)^2               over all that have a Fisher information F and weights w* to hold

Their gradients, l1 sign(w) and l2 w, pass through clipping and moments like those of the loss. Decoupled decay
(`optim.weight_decay` of AdamW) does not: it shrinks the weights beside the update.
"""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hornbook.parallel.gradients.exact import exact_sum, row_absolutes, row_squares
from hornbook.parallel.gradients.gradient_norm import sum_of_shards
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.world import World
from hornbook.settings.training import ElasticAnchor, LossConfig


class Anchor(NamedTuple):
    """What holds the weights of one shard: tensors of its shape, on its device."""

    importance: Tensor
    weights: Tensor


class Penalties:
    """The penalties of one run, on the shards of this rank."""

    def __init__(self, loss: LossConfig, shards: Mapping[str, ParameterShard], world: World, *, exact: bool) -> None:
        self._shards, self._world, self._exact = shards, world, exact
        self._weights = {name: float(value) for name, value in (("l1", loss.l1), ("l2", loss.l2)) if value}
        self._anchor = loss.anchor.weight if isinstance(loss.anchor, ElasticAnchor) else 0.0
        self._anchors: dict[str, Anchor] = {}
        self.names: Collection[str] | None = None
        """Parameters that they are over; to be set before the first step."""

    def add(self, factor: float) -> dict[str, Tensor]:
        """Add `factor` times their gradients to those of this rank's shards; returns the penalties by name.

        float32 scalars, sums over all ranks' shards; those whose weight is 0 are left out.
        """
        found = self._hold(factor) if self._anchors else {}
        if not self._weights:
            return found
        assert self.names is not None, "set Penalties.names before the first step"
        kept = {name: shard for name, shard in self._shards.items() if name in self.names}
        shards = {name: shard for name, shard in kept.items() if shard.tensor.grad is not None}
        for shard in shards.values():
            self._add_gradient(shard, factor)
        return {name: self._value(name, shards) for name in self._weights} | found

    def anchor(self, read: Callable[[str], Anchor]) -> None:
        """Hold the weights from now on; `read` gives whole tensors by the name of a parameter."""
        for name, shard in self._shards.items():
            if shard.tensor.requires_grad:
                mine = (each[shard.slices].to(shard.tensor) for each in read(name))
                self._anchors[name] = Anchor(*(each.contiguous() for each in mine))

    @torch.no_grad()
    def _hold(self, factor: float) -> dict[str, Tensor]:
        """Add the gradient of the anchor; returns it as `add` does."""
        pairs: list[tuple[ParameterShard, Tensor]] = []
        for name, (importance, weights) in self._anchors.items():
            shard = self._shards[name]
            way = shard.tensor.detach() - weights
            if shard.tensor.grad is not None:
                shard.tensor.grad.add_(importance * way, alpha=self._anchor * factor)
            pairs.append((shard, importance.sqrt() * way))
        if self._exact:
            total = exact_sum(pairs, row_squares, self._world)
        else:
            total = sum_of_shards(pairs, self._world, functools.partial(_powers, order=2))
        return {"anchor": (self._anchor / 2 * total).float()}

    @torch.no_grad()
    def _add_gradient(self, shard: ParameterShard, factor: float) -> None:
        weights, gradient = shard.tensor.detach(), shard.tensor.grad
        assert gradient is not None
        if l1 := self._weights.get("l1"):
            gradient.add_(weights.sign(), alpha=l1 * factor)
        if l2 := self._weights.get("l2"):
            gradient.add_(weights, alpha=l2 * factor)

    def _value(self, name: str, shards: Mapping[str, ParameterShard]) -> Tensor:
        weight = self._weights[name] * (0.5 if name == "l2" else 1.0)
        if self._exact:
            rows = row_squares if name == "l2" else row_absolutes
            total = exact_sum(((each, each.tensor.detach()) for each in shards.values()), rows, self._world)
        else:
            value = functools.partial(_powers, order=2 if name == "l2" else 1)
            pairs = [(shard, shard.tensor.detach()) for shard in shards.values()]
            total = sum_of_shards(pairs, self._world, value)
        return (weight * total).float()


def _powers(tensors: Sequence[Tensor], order: int) -> Tensor:
    """float64 scalar: sum of |w|^order."""
    norms = [torch.linalg.vector_norm(tensor, order).double() for tensor in tensors]
    return functools.reduce(torch.add, [norm**order for norm in norms])
