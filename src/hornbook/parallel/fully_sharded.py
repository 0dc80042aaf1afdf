"""Data parallelism by torch's fully_shard: ranks share weights, gradients or moments (ZeRO).

Imported only where `parallel.shard` asks for it: DTensor's modules take as long to import as torch.

In a pipeline the data ranks of a stage share its parts (`ShardedStages`). FSDP's hooks gather weights: those of a
stage's blocks around each pass, the others (embedding, head, last norm) with the first pass of a step. They do not sum
gradients: passes of several microbatches are under way at once, and a backward pass may come in two parts, of which
hooks see the first. So gradients add up whole, and cross ranks between passes: after each microbatch, or once a step
with `shard = "optimizer"`. Ranks that share a stage compute the same passes in one order, so their collectives meet.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

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
from hornbook.kernels.torch_versions import fsdp_groups
from hornbook.model.forward_context import Auxiliary
from hornbook.model.transformer import Transformer
from hornbook.parallel.axes.pipeline.stages import StageModel
from hornbook.parallel.axes.tensor.partial import Partial, add_partial
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.data_parallel import SingleProcess, exact_sum_
from hornbook.parallel.gradients.exact import fill_neutral_
from hornbook.parallel.gradients.gradient_norm import norm_of_shards
from hornbook.parallel.gradients.sums import GradientSums
from hornbook.parallel.offload.offload import holds_weights
from hornbook.parallel.parameter_shard import Divisions, ParameterShard, local_shards
from hornbook.parallel.traffic.fsdp import (
    Bf16ReduceScatter,
    CountedAllGather,
    CountedReduceScatter,
    CountedReplicas,
    ExactReduceScatter,
    PlainReduceScatter,
)
from hornbook.parallel.world import HYBRID, Axis, World

BESIDE_FSDP: tuple[Axis, ...] = ("context", "expert")
"""Axes over which hornbook sums gradients itself, because fully_shard does not know them."""


class FSDP(SingleProcess):
    """Data parallelism in which the ranks of a group share the parameters of the model."""

    gathers_weights = True

    def __init__(
        self, model: Transformer, world: World, config: ParallelConfig, divisions: Divisions, partial: Partial
    ) -> None:
        assert world.mesh is not None
        self.model, self.clock, self.partial = model, world.clock, partial
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
            exact_sum_(gradients, self._world, ("replica",))

    def norm(self, gradients: list[Tensor]) -> Tensor:
        with self.clock.phase("communication"):
            return norm_of_shards(self.shards, gradients, self._world)

    def reshard(self) -> None:
        for module in self._fsdp_modules:
            module.reshard()


class ShardedStages(FSDP):
    """`FSDP` for the stages that one pipeline rank computes."""

    def __init__(
        self, model: Transformer, world: World, config: ParallelConfig, divisions: Divisions, partial: Partial
    ) -> None:
        super().__init__(model, world, config, divisions, partial)
        self._defer()

    def begin_microbatch(self, *, last: bool, is_empty: bool) -> None:
        """Nothing depends on which microbatch is the last."""

    def call_through_hooks(self, stage: StageModel, number: int) -> Callable[..., Any]:
        """The same call, which gathers what it needs of the weights outside of blocks."""

        def call(received: Sequence[Tensor], inputs: dict[str, Any]) -> tuple[tuple[Tensor, ...], Auxiliary]:
            sent, auxiliary = stage(received, inputs)
            # Hooks see the encoder's memory come in, and must not see the same tensor go out.
            return tuple(each if each._base is None else each.clone() for each in sent), auxiliary

        name = f"stage_{number}"
        setattr(self.model, name, call)
        register_fsdp_forward_method(self.model, name)
        return getattr(self.model, name)

    @contextlib.contextmanager
    def gathered(self, stage: StageModel) -> Iterator[None]:
        """Around a pass that no hook comes before: the weights of a stage's blocks stay gathered."""
        blocks = [block for block in stage.blocks if isinstance(block, FSDPModule)]
        for block in blocks:
            block.set_reshard_after_backward(False)
            block.unshard()
        yield
        for block in blocks:
            block.set_reshard_after_backward(self._releases)
        self._post_backward()

    def end_microbatch(self) -> None:
        """Called between passes when all of a microbatch's gradients are there, and perhaps some of others."""
        if self._config.shard != "optimizer":
            self._reduce()

    def finish_gradients(self) -> None:
        self._reduce()
        root = self._root
        root._state_ctx.is_last_backward = True
        root._root_post_backward_final_callback()  # waits for the sums
        self._defer()
        self.reshard()
        super().finish_gradients()

    @property
    def _root(self) -> Any:
        """FSDP's state of the whole model, which torch keeps to itself."""
        assert isinstance(self.model, FSDPModule)
        return self.model._get_fsdp_state()

    @property
    def _releases(self) -> bool:
        """Whether gathered weights of blocks are released between passes."""
        return self._config.shard == "everything" and self._config.reshard

    def _defer(self) -> None:
        """Let backward passes add gradients up, and release weights of blocks at most."""
        for module in self._fsdp_modules:
            module.set_requires_gradient_sync(False, recurse=False)
            module.set_reshard_after_backward(self._releases and module is not self.model, recurse=False)
        self._root._state_ctx.is_last_backward = False

    def _reduce(self) -> None:
        """Sum over the ranks what has added up since the last call, each rank its part."""
        for module in self._fsdp_modules:
            module.set_requires_gradient_sync(True, recurse=False)
            module.set_reshard_after_backward(False, recurse=False)
        self._post_backward()
        self._defer()

    def _post_backward(self) -> None:
        """Add gradients up as FSDP's hooks do after backward: in the dtype in which they cross ranks."""
        for state in self._root._state_ctx.all_states:
            for group in fsdp_groups(state):
                before = group._training_state
                group.post_backward()
                group._training_state = before


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
