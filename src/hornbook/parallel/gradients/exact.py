"""Sums over microbatches with the same bits on 1, 2, 4, 8 ... ranks (`parallel.exact`).

Addition of floats is not associative, so the order is fixed: a binary tree over the numbers of the microbatches of a
step, low bit first. Microbatches 2i and 2i + 1 are added, then those sums in pairs, and so on; where the number is not
a power of two, a node without a partner moves up unchanged.

Rank r of W computes microbatches r, r + W, r + 2W ... (`rank_share`). So the microbatches of one round are a block of
W neighbouring leaves, whose subtree is a sum across ranks (`exact_all_reduce_`, or `ExactReduceScatter` inside
torch's fully_shard), and the rounds that follow are added by a binary counter (`TreeSum`). Both give the nodes of one
and the same tree, whatever power of two W is. In a group of replicas and shards the low bits of a rank are its shard:
first the sum over the shards of a replica, then over replicas.

A rank without a microbatch in a round adds -0.0 (`fill_neutral_`), the neutral element of IEEE addition: x + -0.0 has
the bits of x even for x = -0.0, where x + 0.0 has not.

The steps after the sums must not depend on the shards either: the norm is summed by rows (`exact_norm`), and shards
begin and end where the vectors of the optimizer's kernel do (`check_shards`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from hornbook.errors import UsageError
from hornbook.kernels.torch_versions import all_gather_single
from hornbook.model.layers.transfer import to_device
from hornbook.parallel.parameter_shard import ParameterShard
from hornbook.parallel.world import AXES, DATA, World

VECTOR = 16
"""Elements of the widest vectors of a CPU; fused AdamW rounds the elements left over by them differently."""
NARROWEST = 4
"""Elements of the narrowest vectors. Elements left over by them are computed one by one, wherever a shard ends."""
BUCKET_BYTES = 32 * 2**20
"""Gradients cross ranks in parts of about this size."""
BLOCK_ELEMENTS = 2**20
"""Squares summed at once."""


def tree_sum_(parts: Sequence[Tensor]) -> Tensor:
    """Sum of tensors in the fixed tree, neighbours first; overwrites the parts and returns one of them."""
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [left.add_(right) for left, right in pairs] + list(parts[len(parts) // 2 * 2 :])
    return parts[0]


def fill_neutral_(tensors: Sequence[Tensor]) -> None:
    """Fill a rank's summands with -0.0, which changes no bit of a sum: it has no microbatch in this round."""
    for tensor in tensors:
        tensor.fill_(-0.0)


class TreeSum:
    """Sums lists of tensors, one list after the other, in the fixed tree: a binary counter whose digits are sums.

    Holds at most log2(lists) + 1 lists at a time.
    """

    def __init__(self) -> None:
        self._nodes: list[tuple[int, list[Tensor]]] = []
        """Sums of 2^level lists and the level, falling."""

    def push(self, leaf: Sequence[Tensor]) -> None:
        """Add a list of tensors, of the same shapes each time; the sum takes their memory, do not use them again."""
        level, node = 0, list(leaf)
        while self._nodes and self._nodes[-1][0] == level:
            _, left = self._nodes.pop()
            level, node = level + 1, _add_(left, node)
        self._nodes.append((level, node))

    def total(self) -> list[Tensor]:
        """The sum of all lists; the accumulator is empty afterwards."""
        assert self._nodes, "nothing was added"
        _, right = self._nodes.pop()
        while self._nodes:
            _, left = self._nodes.pop()
            right = _add_(left, right)
        return right

    def give(self, parameters: Iterable[nn.Parameter]) -> None:
        """Make the sum of all lists the gradients of parameters."""
        for parameter, gradient in zip(parameters, self.total(), strict=True):
            parameter.grad = gradient


def _add_(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
    for mine, other in zip(left, right, strict=True):
        mine.add_(other)
    return left


def exact_all_reduce_(tensors: Sequence[Tensor], group: ProcessGroup | None = None) -> None:
    """Sum tensors of one dtype over the ranks of a group (None: all) in the fixed tree, in place.

    Every rank adds up its part of the elements and shares the sums: the traffic of an all-reduce.
    """
    size = dist.get_world_size(group)
    for bucket in _buckets(tensors):
        sizes = [tensor.numel() for tensor in bucket]
        padding = bucket[0].new_zeros(-sum(sizes) % size)
        flat = torch.cat([*(tensor.reshape(-1) for tensor in bucket), padding])
        all_gather_single(flat, sum_of_own_part(flat, group), group=group)
        for tensor, total in zip(bucket, flat.split([*sizes, len(padding)]), strict=False):
            tensor.copy_(total.view_as(tensor))


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        bucket.append(tensor)
        if sum(each.nbytes for each in bucket) >= BUCKET_BYTES:
            yield bucket
            bucket = []
    if bucket:
        yield bucket


def sum_of_own_part(flat: Tensor, group: ProcessGroup | None) -> Tensor:
    """This rank's part of a flat tensor (one equal part per rank), summed over all ranks."""
    received = torch.empty_like(flat)
    dist.all_to_all_single(received, flat, group=group)
    return tree_sum_(received.view(dist.get_world_size(group), -1).unbind())


def exact_norm(shards: Mapping[str, ParameterShard], world: World) -> Tensor:
    """Scalar of the gradients' dtype: the global L2 norm of the shards' gradients, the same bits for any sharding."""
    pairs = [(shard, shard.tensor.grad) for shard in shards.values() if shard.tensor.grad is not None]
    assert pairs, "there are no gradients: call forward_backward first"
    return exact_sum(pairs, row_squares, world).sqrt().to(next(iter(shards.values())).tensor.dtype)


def exact_terms(found: list[Tensor], world: World) -> Tensor:
    """Sums of [terms] over the microbatches of all ranks, correctly rounded: neither order nor ranks matter.

    The host adds, and waits for the device.
    """
    columns = world.all_gather(torch.stack(found).double(), DATA)
    return to_device(torch.tensor([math.fsum(row) for row in torch.cat(columns).T.tolist()]), world.device)


def exact_sum(
    pairs: Iterable[tuple[ParameterShard, Tensor]], rows_of: Callable[[Tensor], Tensor], world: World
) -> Tensor:
    """float64 scalar: sum over all shards of `rows_of` a tensor of each, the same bits for any sharding.

    `rows_of` gives sums row by row (dim 0), since shards divide a parameter between rows. Each row is counted by the
    primary replica of its shard; the others add zeros, which is exact.
    """
    rows = [_rows_of_shard(shard, tensor, rows_of) for shard, tensor in pairs]
    rows = rows or [torch.zeros(1, dtype=torch.float64, device=world.device)]
    return fold_(world.all_reduce_sum(torch.cat(rows).to(world.device), AXES)[None])[0]


def _rows_of_shard(shard: ParameterShard, tensor: Tensor, rows_of: Callable[[Tensor], Tensor]) -> Tensor:
    """float64 [rows of the whole parameter]: sums of rows, zero for the rows that other ranks count."""
    rows = torch.zeros(shard.shape[0] if shard.shape else 1, dtype=torch.float64, device=tensor.device)
    if tensor.numel() and shard.is_primary:
        sums = rows_of(tensor)
        first = shard.start[0] if shard.start else 0
        rows[first : first + len(sums)] = sums
    return rows


def row_squares(x: Tensor) -> Tensor:
    """float64 [rows]: sum of squares of each row of [rows, ...]."""
    return _row_sums(x, torch.Tensor.square_)


def row_absolutes(x: Tensor) -> Tensor:
    """float64 [rows]: sum of absolute values of each row of [rows, ...]."""
    return _row_sums(x, torch.Tensor.abs_)


def _row_sums(x: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
    rows = x.reshape(x.shape[0] if x.dim() else 1, -1)
    blocks = rows.split(max(1, BLOCK_ELEMENTS // rows.shape[1]))
    return torch.cat([fold_(of(block.to(torch.float64, copy=True))) for block in blocks])


def fold_(x: Tensor) -> Tensor:
    """Sum over the last dim of [rows, n], halving it; overwrites x.

    Only element-wise additions: torch's own sum of a row has other bits where the row is alone and threads are two.
    """
    while x.shape[1] > 1:
        half = (x.shape[1] + 1) // 2
        x[:, : x.shape[1] - half] += x[:, half:]
        x = x[:, :half]
    return x[:, 0]


def check_shards(shards: Mapping[str, ParameterShard]) -> None:
    """Raise UsageError unless every shard of a parameter ends between vectors of the optimizer's kernel, or behind the
    last of them: a bias of three is computed element by element in any case.
    """
    for name, shard in shards.items():
        if not shard.tensor.requires_grad:
            continue
        row = math.prod(shard.shape[1:])
        assert tuple(shard.tensor.shape[1:]) == shard.shape[1:], f"{name} is not divided between rows"
        first, size, whole = shard.start[0] * row if shard.start else 0, shard.tensor.numel(), math.prod(shard.shape)
        last, rest = first + size, whole - whole % NARROWEST
        if size and any(place % VECTOR and place < rest for place in (first, last)):
            raise UsageError(
                f"parallel.exact: a rank would hold elements {first} to {last} of {name} {list(shard.shape)}, and bits "
                f"are the same only where parameters are cut at multiples of {VECTOR} elements: use "
                f"--parallel.shard none, fewer ranks to share the model (--parallel.replicas), "
                f"or a model.width that is a multiple of {VECTOR} times the ranks that share it"
            )
