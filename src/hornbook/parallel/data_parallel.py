"""How one model lies over data-parallel ranks, and how its gradients become the sum over all of them.

| `parallel.shard` | each rank holds | gradients cross ranks |
|---|---|---|
| none | everything (DistributedDataParallel; Li et al. 2020, arXiv 2006.15704) | once a step, with the last backward |
| optimizer | its share of the moments (ZeRO-1; Rajbhandari et al. 2020, arXiv 1910.02054) | once a step |
| gradients | its share of moments and gradients (ZeRO-2) | every microbatch |
| everything | its share of weights too, gathered block by block (ZeRO-3, torch's fully_shard) | every microbatch |

Sums, never means: the objective is divided by the weight of the whole global batch before backward, so adding up
what ranks have is the gradient of the whole.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn.parallel import DistributedDataParallel

from hornbook.model.transformer import Transformer
from hornbook.parallel.clip import global_norm
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.exact import ExactReduceScatter, exact_all_reduce_, leave_out_
from hornbook.parallel.mesh import Mesh
from hornbook.parallel.pieces import Piece, whole_piece


class Whole:
    """One process holds everything."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self.module: Callable[..., Any] = model
        """What a training forward pass calls."""
        self.pieces: dict[str, Piece] = {name: whole_piece(each) for name, each in model.named_parameters()}

    def zero(self) -> None:
        """Forget all gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def before(self, *, last: bool, blank: bool) -> None:
        """Called before the forward pass of each microbatch.

        last: after its backward the gradients are complete. blank: this rank has none left, others have.
        """

    def collect(self) -> None:
        """Called when gradients are complete: every piece's `grad` is its part of the sum."""

    def add_ranks(self, gradients: list[Tensor]) -> None:
        """In exact mode, after each microbatch: add what the other ranks have for the same round, in place."""

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Global L2 norm, from the gradients of this rank's pieces; the same on every rank."""
        return global_norm(gradients)

    def whole(self, name: str) -> Tensor:
        """A whole parameter, on every rank."""
        return self.pieces[name].tensor.detach()

    def settle(self) -> None:
        """Called after looking (evaluation, samples): hold no more than training does."""


class Replicated(Whole):
    """Every rank holds everything."""

    def __init__(self, model: Transformer, mesh: Mesh, *, exact: bool) -> None:
        super().__init__(model)
        keepers = share_out({name: piece.tensor.numel() for name, piece in self.pieces.items()}, mesh.size)
        self.pieces = {
            name: whole_piece(piece.tensor, keepers[name] == mesh.rank) for name, piece in self.pieces.items()
        }
        self._ddp: DistributedDataParallel | None = None
        self._blank = False
        if not exact:
            devices = [mesh.device] if mesh.device.type == "cuda" else None
            self._ddp = self.module = DistributedDataParallel(
                model, device_ids=devices, forward_sync_buffers=False, gradient_as_bucket_view=True, init_sync=False
            )
            self._ddp.register_comm_hook(None, _sum_hook)

    def before(self, *, last: bool, blank: bool) -> None:
        self._blank = blank
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = last

    def add_ranks(self, gradients: list[Tensor]) -> None:
        if self._blank:
            leave_out_(gradients)
        exact_all_reduce_(gradients)


class Sharded(Whole):
    """Ranks of a group hold the model between them."""

    def __init__(self, model: Transformer, mesh: Mesh, config: ParallelConfig) -> None:
        assert mesh.grid is not None
        self.model = self.module = model
        self._grid, self._config = mesh.grid, config
        self._reduce_scatter = ExactReduceScatter()
        if config.exact:
            for part in self._parts:
                part.set_custom_reduce_scatter(self._reduce_scatter)
        self._cut = {name: each for name, each in model.named_parameters() if isinstance(each, DTensor)}
        """Between forward and backward the model shows gathered parameters instead of these."""
        self.pieces = self._pieces(mesh)

    @property
    def _parts(self) -> list[FSDPModule]:
        return [module for module in self.model.modules() if isinstance(module, FSDPModule)]

    def _pieces(self, mesh: Mesh) -> dict[str, Piece]:
        keepers = share_out({name: each.numel() for name, each in self._cut.items()}, self._config.replicas)
        replica, pieces = mesh.rank // self._grid["shard"].size(), {}
        for name, parameter in self._cut.items():
            _, start = compute_local_shape_and_global_offset(
                parameter.shape, parameter.device_mesh, parameter.placements
            )
            # The same storage, without DTensor's dispatch.
            local = nn.Parameter(parameter._local_tensor.detach(), requires_grad=parameter.requires_grad)
            pieces[name] = Piece(local, tuple(parameter.shape), tuple(start), keepers[name] == replica)
        return pieces

    def zero(self) -> None:
        for name, piece in self.pieces.items():
            piece.tensor.grad = self._cut[name].grad = None

    def before(self, *, last: bool, blank: bool) -> None:
        self._reduce_scatter.absent = blank
        each = self._config.exact or self._config.shard in ("gradients", "everything")
        for part in self._parts:
            part.set_requires_gradient_sync(each or last, recurse=False)
            part.set_reshard_after_backward(last or self._config.shard == "everything", recurse=False)

    def collect(self) -> None:
        for name, parameter in self._cut.items():
            if not parameter.requires_grad:
                continue
            gradient = parameter.grad
            assert isinstance(gradient, DTensor), f"{name} took no part in the loss"
            self.pieces[name].tensor.grad = gradient._local_tensor

    def add_ranks(self, gradients: list[Tensor]) -> None:
        if self._reduce_scatter.absent and self._grid["shard"].size() == 1:
            leave_out_(gradients)  # torch has no reduce-scatter in a group of one
        if self._config.replicas > 1:
            exact_all_reduce_(gradients, self._grid["replica"].get_group())

    def norm(self, gradients: list[Tensor]) -> Tensor:
        squares = global_norm(gradients).double().square()
        dist.all_reduce(squares, group=self._grid["shard"].get_group())
        return squares.sqrt().to(gradients[0].dtype)

    def whole(self, name: str) -> Tensor:
        return self._cut[name].full_tensor().detach()

    def settle(self) -> None:
        for part in self._parts:
            part.reshard()


def shard_model(model: Transformer, mesh: Mesh, config: ParallelConfig) -> None:
    """Cut every parameter over the shard dim of the grid (torch's fully_shard): each block, then the ends."""
    assert mesh.grid is not None
    # Exact sums over replicas are made by `add_ranks`, so that torch sees one group only.
    grid = mesh.grid if config.replicas > 1 and not config.exact else mesh.grid["shard"]
    for block in model.all_blocks():
        fully_shard(block, mesh=grid, reshard_after_forward=config.shard == "everything")
    fully_shard(model, mesh=grid, reshard_after_forward=False)  # the loss needs the head after the forward pass
    register_fsdp_forward_method(model, "encode")  # samples call the encoder alone
    for part in model.modules():
        if isinstance(part, FSDPModule):
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)


def share_out(sizes: Mapping[str, int], ranks: int) -> dict[str, int]:
    """Which rank keeps which name, so that all keep about as much: the largest first, to whoever has least."""
    loads, keepers = [0] * ranks, {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        keepers[name] = loads.index(min(loads))
        loads[keepers[name]] += sizes[name]
    return keepers


def _sum_hook(state: object, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """DDP divides by the number of ranks; this adds."""
    del state
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: future.value()[0])
