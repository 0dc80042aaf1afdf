"""Data parallelism: what each rank holds of the model, and how gradients are summed over the ranks.

| `parallel.shard` | each rank holds | gradients cross ranks |
|---|---|---|
| none | everything (DistributedDataParallel; Li et al. 2020, arXiv 2006.15704) | once a step, with the last backward |
| optimizer | its share of the moments (ZeRO-1; Rajbhandari et al. 2020, arXiv 1910.02054) | once a step |
| gradients | its share of moments and gradients (ZeRO-2) | every microbatch |
| everything | its share of weights too, gathered block by block (ZeRO-3, torch's fully_shard) | every microbatch |

Gradients are summed, never averaged: the objective is divided by the weight of the whole global batch before
backward, so the sum over ranks is the gradient of the whole batch.

Where other axes than those of data have several ranks, and `parallel.shard` is none, `Summed` adds gradients up after
the last microbatch: what a rank holds of a parameter, over the ranks that hold the same and saw other tokens.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from hornbook.errors import UsageError
from hornbook.model.transformer import Transformer
from hornbook.parallel.axes.tensor.partial import Partial, add_partial
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.gradients.exact import ExactReduceScatter, exact_all_reduce_, fill_neutral_
from hornbook.parallel.gradients.norm import global_norm, norm_of_shards
from hornbook.parallel.shard import Divisions, ParameterShard, local_shards
from hornbook.parallel.traffic.fsdp import (
    Bf16ReduceScatter,
    CountedAllGather,
    CountedReduceScatter,
    CountedReplicas,
    PlainReduceScatter,
)
from hornbook.parallel.traffic.traffic import Flow, sent_bytes
from hornbook.parallel.world import DATA, HYBRID, TOKENS, Axis, World, others

BUCKET_MB = 25.0
"""MiB of gradients that are summed in one collective call, as in DDP, where `parallel.bucket_mb` says nothing."""
BESIDE_FSDP: tuple[Axis, ...] = ("context", "expert")
"""Axes that gradients are summed over and fully_shard does not know."""


class SingleProcess:
    """One process holds everything; the base of the forms for several ranks."""

    def __init__(self, model: Transformer, world: World, divisions: Divisions) -> None:
        self.model, self.clock = model, world.clock
        self.module: Callable[..., Any] = model
        """Called for a training forward pass."""
        self.partial: Partial = {}
        """Gradients that ranks of the axis `tensor` add up once those of other tokens are summed."""
        self.shards: dict[str, ParameterShard] = local_shards(dict(model.named_parameters()), divisions, world)

    def zero_gradients(self) -> None:
        """Drop all gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def begin_microbatch(self, *, last: bool, is_empty: bool) -> None:
        """Called before the forward pass of each microbatch.

        last: after its backward the gradients are complete. is_empty: this rank has no microbatch left, others have.
        """

    def finish_gradients(self) -> None:
        """Called when gradients are complete: every shard's `grad` is then its part of the sum."""

    def all_reduce(self, gradients: list[Tensor]) -> None:
        """In exact mode, after each microbatch: add the gradients of the other ranks for the same round, in place."""

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Global L2 norm, from the gradients of this rank's trained shards; the same on every rank."""
        return global_norm(gradients)

    def gradients(self) -> list[Tensor]:
        """The gradients so far, of this rank's shards; they may not be summed over the ranks yet."""
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def local_norm(self) -> Tensor | None:
        """L2 norm of this rank's gradients before they were summed over the ranks; None where it is not measured."""
        return None

    def reshard(self) -> None:
        """Called after evaluation and samples: free whatever training does not hold."""


class DDP(SingleProcess):
    """Every rank holds everything."""

    def __init__(self, model: Transformer, world: World, config: ParallelConfig) -> None:
        super().__init__(model, world, {})
        self.world, self.config = world, config
        self._ddp: DistributedDataParallel | None = None
        self._is_empty = False
        self.bucket_norms: list[Tensor] | None = None
        """Of this rank's gradients in each bucket of the step; None: not measured."""
        if not config.exact:
            devices = [world.device] if world.device.type == "cuda" else None
            size: dict[str, Any] = {"bucket_cap_mb": config.bucket_mb}  # torch declares it whole, and takes any number
            self._ddp = self.module = DistributedDataParallel(
                model,
                device_ids=devices,
                process_group=world.group(DATA),
                **size,
                forward_sync_buffers=False,
                gradient_as_bucket_view=True,
                init_sync=False,
            )
            self._ddp.register_comm_hook(self, _sum_hook)

    def begin_microbatch(self, *, last: bool, is_empty: bool) -> None:
        self._is_empty = is_empty
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = last

    def measure_local(self) -> None:
        """Measure `local_norm` from the next step on: buckets are looked at just before they are summed."""
        self.bucket_norms = []

    def local_norm(self) -> Tensor | None:
        return torch.linalg.vector_norm(torch.stack(self.bucket_norms)) if self.bucket_norms else None

    def zero_gradients(self) -> None:
        super().zero_gradients()
        if self.bucket_norms is not None:
            self.bucket_norms.clear()

    def all_reduce(self, gradients: list[Tensor]) -> None:
        if self._is_empty:
            fill_neutral_(gradients)
        _exact_sum_(gradients, self.world, DATA)


class Summed(SingleProcess):
    """Every rank holds what the axes besides those of data leave to it; gradients are summed once a step."""

    def __init__(self, model: Transformer, world: World, config: ParallelConfig, divisions: Divisions) -> None:
        super().__init__(model, world, divisions)
        self._world, self._config = world, config

    def finish_gradients(self) -> None:
        with self.clock.phase("communication"):
            sum_gradients(self.shards, self._world, TOKENS, self._config)
            add_partial(self.shards, self.partial, self._world)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        with self.clock.phase("communication"):
            return norm_of_shards(self.shards, gradients, self._world)


def sum_gradients(
    shards: dict[str, ParameterShard], world: World, axes: tuple[Axis, ...], config: ParallelConfig
) -> None:
    """Add up the gradients of shards in place, over those of `axes` along which ranks hold the same."""
    by_axes = dict[tuple[Axis, ...], list[Tensor]]()
    for shard in shards.values():
        if shard.tensor.requires_grad:
            if shard.tensor.grad is None:  # it took no part: no token chose this expert, no microbatch came here
                shard.tensor.grad = torch.zeros_like(shard.tensor)
            over = others(axes, shard.axes)
            by_axes.setdefault(over, []).append(shard.tensor.grad)
    for over, gradients in by_axes.items():
        if world.axis_size(over) > 1:
            for bucket in _buckets(gradients, (config.bucket_mb or BUCKET_MB) * 2**20):
                _sum_bucket(bucket, world, over, compress=config.compress == "bf16")


def _buckets(tensors: list[Tensor], most: float) -> list[list[Tensor]]:
    """In their order, of one dtype and up to `most` bytes each, or one tensor that is larger."""
    found, size = list[list[Tensor]](), 0
    for tensor in tensors:
        size += tensor.nbytes
        if not found or size > most or found[-1][0].dtype != tensor.dtype:
            found.append([])
            size = tensor.nbytes
        found[-1].append(tensor)
    return found


def _sum_bucket(tensors: list[Tensor], world: World, axes: tuple[Axis, ...], *, compress: bool) -> None:
    """Sums in place."""
    flat = torch.cat([each.flatten() for each in tensors])
    sums = world.all_reduce_sum(_crossing(flat, compress=compress), axes)
    for tensor, total in zip(tensors, sums.split([each.numel() for each in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def _crossing(gradients: Tensor, *, compress: bool) -> Tensor:
    """Gradients as they cross ranks: bfloat16 in float32, or all in bfloat16 (`parallel.compress`)."""
    if compress:
        return gradients.to(torch.bfloat16)
    return gradients.float() if gradients.dtype == torch.bfloat16 else gradients


def _exact_sum_(gradients: list[Tensor], world: World, axes: tuple[Axis, ...]) -> None:
    """In the fixed tree: an all-to-all, then an all-gather."""
    size = sum(each.nbytes for each in gradients)
    world.clock.traffic.count(
        world.axes_name(axes), "all-to-all", sent_bytes("all-to-all", size, world.axis_size(axes))
    )
    with world.collective(axes, "all-gather", size):
        exact_all_reduce_(gradients, world.group(axes))


class FSDP(SingleProcess):
    """The ranks of a group hold the model between them."""

    def __init__(self, model: Transformer, world: World, config: ParallelConfig, divisions: Divisions) -> None:
        assert world.mesh is not None
        self.model = self.module = model
        self.clock, self.partial = world.clock, {}
        self._world, self._config = world, config
        self._reduce_scatter = ExactReduceScatter()
        self._count_traffic()
        self._parameters = {name: each for name, each in model.named_parameters() if isinstance(each, DTensor)}
        """Between forward and backward the model shows gathered parameters instead of these."""
        self.shards = self._local_shards(divisions)

    def _count_traffic(self) -> None:
        """Let FSDP call collectives that are counted."""
        config = self._config
        rounded = Bf16ReduceScatter() if config.compress == "bf16" else PlainReduceScatter()
        inner = self._reduce_scatter if config.exact else rounded
        scatter = CountedReduceScatter(self.clock, "shard", inner)
        replicas = CountedReplicas(self.clock, "replica", config.replicas)
        for module in self._fsdp_modules:
            module.set_custom_all_gather(CountedAllGather(self.clock, "shard"))
            module.set_custom_reduce_scatter(scatter)
            if config.replicas > 1 and not config.exact:
                scatter.then = replicas.begin
                module.set_all_reduce_hook(replicas)

    @property
    def _fsdp_modules(self) -> list[FSDPModule]:
        return [module for module in self.model.modules() if isinstance(module, FSDPModule)]

    def _local_shards(self, divisions: Divisions) -> dict[str, ParameterShard]:
        # The same storage, without DTensor's dispatch.
        local = {
            name: nn.Parameter(each._local_tensor.detach(), requires_grad=each.requires_grad)
            for name, each in self._parameters.items()
        }
        # Chunks of rows, the last ones short or empty.
        ranks, rank = self._world.axis_size(["shard"]), self._world.axis_rank(["shard"])
        sharded = {
            name: (tuple(each.shape), (min(-(-len(each) // ranks) * rank, len(each)), *(0 for _ in each.shape[1:])))
            for name, each in self._parameters.items()
        }
        return local_shards(local, divisions, self._world, sharded)

    def zero_gradients(self) -> None:
        for name, shard in self.shards.items():
            shard.tensor.grad = self._parameters[name].grad = None

    def begin_microbatch(self, *, last: bool, is_empty: bool) -> None:
        self._reduce_scatter.is_empty = is_empty
        every_time = self._config.exact or self._config.shard in ("gradients", "everything")
        for module in self._fsdp_modules:
            module.set_requires_gradient_sync(every_time or last, recurse=False)
            module.set_reshard_after_backward(last or self._config.shard == "everything", recurse=False)

    def gradients(self) -> list[Tensor]:
        found = (parameter.grad for parameter in self._parameters.values() if parameter.requires_grad)
        return [gradient._local_tensor for gradient in found if isinstance(gradient, DTensor)]

    def finish_gradients(self) -> None:
        for name, parameter in self._parameters.items():
            if not parameter.requires_grad:
                continue
            gradient = parameter.grad
            assert isinstance(gradient, DTensor), f"{name} took no part in the loss"
            self.shards[name].tensor.grad = gradient._local_tensor
        if self._world.axis_size(BESIDE_FSDP) > 1:
            with self.clock.phase("communication"):
                sum_gradients(self.shards, self._world, BESIDE_FSDP, self._config)
        if self.partial:
            with self.clock.phase("communication"):
                add_partial(self.shards, self.partial, self._world)

    def all_reduce(self, gradients: list[Tensor]) -> None:
        if self._reduce_scatter.is_empty and self._world.axis_size(["shard"]) == 1:
            fill_neutral_(gradients)  # torch has no reduce-scatter in a group of one
        if self._world.axis_size(["replica"]) > 1:
            _exact_sum_(gradients, self._world, ("replica",))

    def norm(self, gradients: list[Tensor]) -> Tensor:
        with self.clock.phase("communication"):
            return norm_of_shards(self.shards, gradients, self._world)

    def reshard(self) -> None:
        for module in self._fsdp_modules:
            module.reshard()


def shard_model(model: Transformer, world: World, config: ParallelConfig) -> None:
    """Shard every parameter over the mesh's axis `shard` (torch's fully_shard): each block, then the rest."""
    assert world.mesh is not None
    # With exact sums `FSDP.all_reduce` adds the replicas, so that torch sees one group only.
    mesh = world.mesh[HYBRID] if config.replicas > 1 and not config.exact else world.mesh["shard"]
    release = config.shard == "everything" and config.reshard
    policy = _precision_policy(model, config)
    for block in model.all_blocks():
        fully_shard(block, mesh=mesh, reshard_after_forward=release, mp_policy=policy)
    fully_shard(
        model, mesh=mesh, reshard_after_forward=False, mp_policy=policy
    )  # the loss needs the head after the forward pass
    register_fsdp_forward_method(model, "encode")  # samples call the encoder alone
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


def _precision_policy(model: Transformer, config: ParallelConfig) -> MixedPrecisionPolicy:
    """Gradients are summed in float32 where weights are, or are gathered in, bfloat16."""
    dtype = next(model.parameters()).dtype
    if config.gather == "bf16" and model.compute_dtype != torch.bfloat16:
        text = 'parallel.gather: "bf16" needs a run that computes in bfloat16: set train.precision to bf16, or leave it'
        raise UsageError(f"{text} out")
    if config.gather == "bf16" and dtype == torch.float32:
        return MixedPrecisionPolicy(torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    return MixedPrecisionPolicy(reduce_dtype=torch.float32 if dtype == torch.bfloat16 else None)


def _sum_hook(parallel: DDP, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """DDP divides by the number of ranks; this adds, bfloat16 in float32."""
    buffer, world = bucket.buffer(), parallel.world
    if parallel.bucket_norms is not None:
        parallel.bucket_norms.append(torch.linalg.vector_norm(buffer, dtype=torch.float32))
    sums = _crossing(buffer, compress=parallel.config.compress == "bf16")
    flow: Flow = world.axes_name(DATA), "all-reduce"
    ended = parallel.clock.traffic.launch(*flow, sent_bytes(flow[1], sums.nbytes, world.axis_size(DATA)))
    work = dist.all_reduce(sums, group=world.group(DATA), async_op=True)
    assert work is not None
    if bucket.is_last():  # from here on backward only waits for the sums
        parallel.clock.switch("communication", flow)

    def take(future: torch.futures.Future[Any]) -> Tensor:
        future.value()  # raises the error of a lost rank; the sum is in place
        ended()
        return buffer if sums is buffer else buffer.copy_(sums)

    return work.get_future().then(take)
