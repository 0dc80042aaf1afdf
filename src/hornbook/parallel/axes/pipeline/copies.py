"""Parameters that several stages hold: their gradients are summed, so that the copies stay equal.

A tied embedding lies on the first stage and beside the head on the last one; T5's positions with all blocks. Each
holder adds the gradients of all holders in the same order: the same bits everywhere, so the optimizers keep them equal.
"""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from hornbook.parallel.axes.pipeline.stages import Layout
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.world import World


def sum_copies(layout: Layout, shards: Mapping[str, ParameterShard], world: World) -> None:
    """Sum the gradients of copies in place. Every rank calls it, once its gradients are summed over the data axes."""
    group, parts = world.group(["pipeline"]), dict[str, dict[int, Tensor]]()
    operations = list[dist.P2POp]()
    for tag, (name, holders) in enumerate(layout.copies.items()):
        if layout.rank not in holders or not shards[name].tensor.requires_grad:
            continue
        gradient = shards[name].tensor.grad
        assert gradient is not None, f"{name} has no gradient"
        if not gradient.numel():  # of a parameter with fewer rows than data ranks, on all holders
            continue
        mine = gradient.to(torch.promote_types(gradient.dtype, torch.float32))
        parts[name] = {holder: mine if holder == layout.rank else torch.empty_like(mine) for holder in holders}
        for holder, part in parts[name].items():
            if holder != layout.rank:
                operations.append(dist.P2POp(dist.isend, mine, group=group, tag=tag, group_peer=holder))
                operations.append(dist.P2POp(dist.irecv, part, group=group, tag=tag, group_peer=holder))
    if operations:
        sent = sum(each.tensor.nbytes for each in operations if each.op is dist.isend)
        with world.collective(["pipeline"], "send", sent):
            for work in dist.batch_isend_irecv(operations):
                work.wait()
    for name, found in parts.items():
        gradient = shards[name].tensor.grad
        assert gradient is not None
        first, *others = found.values()
        total = first.clone()
        for other in others:
            total += other
        gradient.copy_(total)
