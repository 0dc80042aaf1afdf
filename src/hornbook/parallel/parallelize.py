"""From a model to an `Engine`: precision, recomputation, compilation, and the form of data parallelism."""

import functools
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from hornbook.model.attention.device_attention import use_installed_flash
from hornbook.model.layers.float8 import Float8, check_float8, use_float8
from hornbook.model.layers.precision import choose_precision
from hornbook.model.layers.saved_tensors import Rebuilding
from hornbook.model.transformer import Transformer
from hornbook.parallel.axes.context.context import apply_context
from hornbook.parallel.axes.expert.dispatch import apply_experts
from hornbook.parallel.axes.expert.load_balance import loss_names
from hornbook.parallel.axes.pipeline.copies import sum_copies
from hornbook.parallel.axes.pipeline.pipeline_runner import PipelineRunner
from hornbook.parallel.axes.pipeline.stages import apply_stages, record_stages
from hornbook.parallel.axes.tensor.apply_tensor import apply_tensor
from hornbook.parallel.axes.tensor.partial import Partial
from hornbook.parallel.compiled_model import CompiledParts, compile_model
from hornbook.parallel.config import (
    BlockRecompute,
    BudgetRecompute,
    ParallelConfig,
    Recompute,
    SelectiveRecompute,
)
from hornbook.parallel.data_parallel import SingleProcess, Unsharded
from hornbook.parallel.device import choose_device
from hornbook.parallel.engine import Engine
from hornbook.parallel.gradients.exact import check_shards
from hornbook.parallel.gradients.gradient_norm import Scaler
from hornbook.parallel.offload.offload import check_offload, give_memory, offload_activations
from hornbook.parallel.parameter_shard import Divisions
from hornbook.parallel.world import World
from hornbook.settings.training import TrainConfig

PRECISIONS = {
    "bf16": torch.bfloat16,
    "bf16-pure": torch.bfloat16,
    "float8": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
}


def parallelize(
    model: Transformer,
    parallel: ParallelConfig,
    train: TrainConfig,
    world: World | None = None,
    num_tokens: int | None = None,
) -> Engine:
    """The engine of `model` on this rank. A model on meta gets memory, not values: initialise or load it next.

    num_tokens: ids of the tokenizer, where the vocabulary has more rows.
    """
    world = world or World(choose_device(train.device))
    if model.token_head is not None:
        model.token_head.num_real_tokens = num_tokens
    precision = choose_precision(world.device).precision if train.precision == "auto" else train.precision
    model.compute_dtype, model.noise = PRECISIONS[precision], train.neftune
    if precision == "bf16-pure":
        for parameter in model.parameters():  # buffers, such as rotary tables, keep their dtype
            parameter.data = parameter.data.to(torch.bfloat16)
    shapes = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    divisions: Divisions = {}
    names = loss_names(model)
    layout = apply_stages(model, world, parallel)
    apply_experts(model, world, parallel, divisions)
    partial = apply_tensor(model, world, parallel, divisions)
    if layout is not None:
        record_stages(model, layout, divisions)
    apply_context(model, world, parallel.context)
    if precision == "float8":
        check_float8(world.device, train.float8.emulate)
        use_float8(list(model.all_blocks()), Float8(train.float8.scales, train.float8.emulate))
    apply_recompute(model, parallel.recompute)
    check_offload(parallel.offload, world.device)
    offload_activations(model, parallel.offload, world.device)
    budget = parallel.recompute.share if isinstance(parallel.recompute, BudgetRecompute) else 1.0
    compiled = compile_model(model, train, world.device, budget) if train.compile else CompiledParts()
    use_installed_flash(world.device)
    data_parallel = apply_data_parallel(model, world, parallel, divisions, partial)
    if parallel.exact:
        check_shards(data_parallel.shards)
    scaler = Scaler() if precision == "fp16" else None
    settings: dict[str, Any] = {"exact": parallel.exact, "loss": train.loss, "scaler": scaler, "compiled": compiled}
    # Weights that are gathered for each use are not there before it; and who recomputes wants the memory.
    hold = not data_parallel.gathers_weights and parallel.recompute.kind == "none"
    if layout is not None:
        sharded: Any = data_parallel if data_parallel.gathers_weights else None
        settings["runner"] = runner = PipelineRunner(model, world, layout, data_parallel.clock, sharded)
        settings |= {
            "apply": runner.apply,
            "sum_copies": functools.partial(sum_copies, layout, data_parallel.shards, world),
        }
    settings |= {"hold_weights": hold, "shapes": shapes, "trained": trained, "auxiliary": names}
    return Engine(model, world, data_parallel, **settings)


def apply_recompute(model: Transformer, config: Recompute) -> None:
    """Make the model keep for backward what `parallel.recompute` says."""
    if isinstance(config, BlockRecompute):
        recompute_blocks(model, config.every)
    elif isinstance(config, SelectiveRecompute):
        for stack in model.stacks():
            stack.saving = Rebuilding


def recompute_blocks(model: Transformer, every: int = 1) -> None:
    """Keep the input of every k-th block and compute its activations again in backward (arXiv 1604.06174).

    Randomness is keyed by sample and dropout site, so the second pass draws the same masks without a stored generator.
    Parameter names do not change.
    """
    for block in list(model.all_blocks())[::every]:
        block.forward = functools.partial(
            checkpoint, block.forward, use_reentrant=False, preserve_rng_state=False, determinism_check="none"
        )


def apply_data_parallel(
    model: Transformer, world: World, config: ParallelConfig, divisions: Divisions, partial: Partial
) -> SingleProcess:
    """Give the model memory on this rank's device: all that is left of it, or this rank's shards."""
    if world.size == 1 or config.shard == "none":
        with world.memory():
            give_memory(model, config.offload, world)
            if world.size == 1:
                return SingleProcess(model, world, divisions, partial)
            return Unsharded(model, world, config, divisions, partial)
    from hornbook.parallel.fully_sharded import FSDP, ShardedStages, shard_model

    shard_model(model, world, config)
    with world.memory():
        give_memory(model, config.offload, world)
        form = ShardedStages if config.pipeline.stages > 1 else FSDP
        return form(model, world, config, divisions, partial)
