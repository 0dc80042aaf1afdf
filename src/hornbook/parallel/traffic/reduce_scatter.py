"""Sums over ranks of which each rank needs its part."""

import torch
import torch.distributed as dist
from jaxtyping import Float
from torch import Tensor
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from hornbook.kernels.torch_versions import reduce_scatter_single


def reduce_scatter_(found: Float[Tensor, "*part"], parts: Float[Tensor, "*parts"], group: ProcessGroup | None) -> None:
    """`parts`: one contiguous part of equal size for each rank, in the order of ranks; `found` becomes this rank's sum.

    On gloo an all-to-all and a sum on the host, in the order of ranks: as many bytes as gloo's own reduce-scatter, in
    fewer turns of its ring, and bfloat16 is summed in float32 and rounded once.
    """
    if dist.get_backend(group) != "gloo":
        reduce_scatter_single(found, parts, group=group)
        return
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts, group=group)
    torch.sum(received.view(-1, *found.shape), 0, out=found)
