"""Data parallelism: what each rank holds of the model, and how gradients are summed over the ranks.

| `parallel.shard` | each rank holds | gradients cross ranks |
|---|---|---|
| none | everything (Li et al. 2020, arXiv 2006.15704) | once a step, beside the last backward |
| optimizer | its share of the moments (ZeRO-1; Rajbhandari et al. 2020, arXiv 1910.02054) | once a step |
| gradients | its share of moments and gradients (ZeRO-2) | every microbatch |
| everything | its share of weights too, gathered block by block (ZeRO-3, torch's fully_shard) | every microbatch |

Gradients are summed, never averaged: the objective is divided by the weight of the whole global batch before
backward, so the sum over ranks is the gradient of the whole batch.

Where other axes than those of data have several ranks, and `parallel.shard` is none, gradients are summed after the
last microbatch: what a rank holds of a parameter, over the ranks that hold the same and saw other tokens.
"""

from collections.abc import Iterable
from functools import partial

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor

from hornbook.errors import UsageError
from hornbook.model.transformer import Transformer
from hornbook.parallel.axes.tensor.partial import Partial, add_partial
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.gradients.exact import ExactReduceScatter, exact_all_reduce_, fill_neutral_
from hornbook.parallel.gradients.norm import global_norm, norm_of_shards
from hornbook.parallel.gradients.sums import GradientSums
from hornbook.parallel.offload.offload import holds_weights
from hornbook.parallel.shard import Divisions, ParameterShard, local_shards
from hornbook.parallel.traffic.fsdp import (
    Bf16ReduceScatter,
    CountedAllGather,
    CountedReduceScatter,
    CountedReplicas,
    PlainReduceScatter,
)
from hornbook.parallel.traffic.traffic import sent_bytes
from hornbook.parallel.world import DATA, HYBRID, TOKENS, Axis, World

BESIDE_FSDP: tuple[Axis, ...] = ("context", "expert")
"""Axes that gradients are summed over and fully_shard does not know."""


class SingleProcess:
    """One process holds everything; the base of the forms for several ranks."""

    def __init__(self, model: Transformer, world: World, divisions: Divisions) -> None:
        self.model, self.clock = model, world.clock
        self.partial: Partial = {}
        """Gradients that ranks of the axis `tensor` add up once those of other tokens are summed."""
        self.shards: dict[str, ParameterShard] = local_shards(dict(model.named_parameters()), divisions, world)

    def zero_gradients(self) -> None:
        """Drop all gradients."""
        for parameter in self.model.parameters():
            parameter.grad = None

    def copy_gradients(self) -> None:
        """Move the gradients into memory of their own, which the next microbatch adds to."""
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.grad = parameter.grad.clone()

    def begin_microbatch(self, *, last: bool, is_empty: bool) -> None:
        """Called before the forward pass of each microbatch.

        last: after its backward the gradients are complete. is_empty: this rank has no microbatch left, others have.
        """

    def finish_gradients(self) -> None:
        """Called when gradients are complete: every shard's `grad` is then its part of the sum."""

    def take_gradients(self, parameters: Iterable[nn.Parameter]) -> list[Tensor]:
        """In exact mode, after each microbatch: its gradients, summed over ranks; the parameters have none then."""
        self.finish_gradients()
        gradients = [parameter.grad for parameter in parameters]
        self.zero_gradients()
        taken = [gradient for gradient in gradients if gradient is not None]
        assert len(taken) == len(gradients), "a parameter took no part in the loss"
        with self.clock.phase("communication"):
            self.all_reduce(taken)
        return taken

    def all_reduce(self, gradients: list[Tensor]) -> None:
        """In exact mode, after each microbatch: add the gradients of the other ranks for the same round, in place."""

    def norm(self, gradients: list[Tensor]) -> Tensor:
        """Global L2 norm, from the gradients of this rank's trained shards; the same on every rank."""
        return global_norm(gradients)

    def gradients(self) -> list[Tensor]:
        """The gradients so far, of this rank's shards; they may not be summed over the ranks yet."""
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def measure_local(self) -> bool:
        """Measure `local_norm` from the next step on; returns whether this form can."""
        return False

    def local_norm(self) -> Tensor:
        """L2 norm of this rank's gradients before they were summed over the ranks."""
        raise NotImplementedError

    def reshard(self) -> None:
        """Called after evaluation and samples: free whatever training does not hold."""


class Unsharded(SingleProcess):
    """Every rank holds what the axes besides those of data leave to it."""

    def __init__(self, model: Transformer, world: World, config: ParallelConfig, divisions: Divisions) -> None:
        super().__init__(model, world, divisions)
        self._world, self._exact, self._is_empty = world, config.exact, False
        self._sums = GradientSums(self.shards, world, TOKENS, config)
        if world.axis_size(["replica"]) == world.size and not config.exact:
            self._sums.launch_early()

    def begin_microbatch(self, *, last: bool, is_empty: bool) -> None:
        self._is_empty, self._sums.is_last = is_empty, last

    def finish_gradients(self) -> None:
        if not self._exact:
            self._sums.finish()
            with self.clock.phase("communication"):
                add_partial(self.shards, self.partial, self._world)

    def all_reduce(self, gradients: list[Tensor]) -> None:
        if self._is_empty:
            fill_neutral_(gradients)
        _exact_sum_(gradients, self._world, DATA)

    def norm(self, gradients: list[Tensor]) -> Tensor:
        return norm_of_shards(self.shards, gradients, self._world)

    def measure_local(self) -> bool:
        self._sums.measures = not self._exact
        return self._sums.measures

    def local_norm(self) -> Tensor:
        return self._sums.local_norm()


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
        self.model = model
        self.clock, self.partial = world.clock, {}
        self._world, self._config = world, config
        self._reduce_scatter = ExactReduceScatter()
        self._count_traffic()
        self._parameters = {name: each for name, each in model.named_parameters() if isinstance(each, DTensor)}
        """Between forward and backward the model shows gathered parameters instead of these."""
        self.shards = self._local_shards(divisions)
        self._beside = GradientSums(self.shards, world, BESIDE_FSDP, config)

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
            self.shards[name].tensor.grad, parameter.grad = gradient._local_tensor, None
        self._beside.finish()
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
    on_host = CPUOffloadPolicy(pin_memory=world.device.type == "cuda")
    where = on_host if holds_weights(config.offload, world) else OffloadPolicy()
    divide = partial(fully_shard, mesh=mesh, mp_policy=_precision_policy(model, config), offload_policy=where)
    for block in model.all_blocks():
        divide(block, reshard_after_forward=release)
    divide(model, reshard_after_forward=False)  # the loss needs the head after the forward pass
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
