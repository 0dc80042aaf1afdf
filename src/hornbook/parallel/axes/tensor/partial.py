"""Gradients that a rank of the axis `tensor` has a part of, though several ranks hold the parameter.

Most parameters that all ranks hold see the same on each: their gradients are complete and equal. Not so norms of heads,
of which each rank has some; key-value heads that several ranks hold, each for other queries; and, where the residual
stream is divided by time, what is applied to a part of it.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from hornbook.parallel.axes.tensor.tensor_collectives import AXIS
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.world import World

Partial = dict[str, tuple[int, int]]
"""Name -> which of how many different parts of the parameter this rank holds; (0, 1): all hold the same."""


def add_partial(shards: Mapping[str, ParameterShard], partial: Partial, world: World) -> None:
    """Add up these gradients in place, over the ranks that hold the same part; all ranks call it together."""
    together = dict[tuple[int, torch.dtype], list[tuple[int, Tensor]]]()
    for name, (part, parts) in partial.items():
        gradient = shards[name].tensor.grad
        if gradient is not None:
            together.setdefault((parts, gradient.dtype), []).append((part, gradient))
    for (parts, dtype), found in together.items():
        gradients = [gradient for _, gradient in found]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        # Each part has a row of its own: one sum over all ranks serves all of them.
        sums = flat.new_zeros(parts, len(flat), dtype=torch.float32 if dtype == torch.bfloat16 else dtype)
        sums[found[0][0]] = flat
        mine = world.all_reduce_sum(sums, AXIS)[found[0][0]]
        for gradient, total in zip(gradients, mine.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(total.view_as(gradient))
