"""torchtitan's training step on one GPU: one of its own Llamas, cut to so many blocks, as its trainer runs it.

Blocks and loss are compiled, the loss goes by chunks (its `ChunkedLossWrapper`), activations are kept, AdamW is fused;
"float8" converts all linear layers but the head by its `Float8LinearConverter`, which takes torchao and on a CPU only
emulates. Attention is its SDPA, since rows are whole. Installed as `ranks_torchtitan.py` says, torchao beside it.
"""

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

HOW = {"spmd_backend": "partial_dtensor"}


def begin(spec: dict[str, Any], device: torch.device) -> Callable[[Tensor], float]:
    """Forward and backward of each microbatch, clipping, AdamW; spec["torchtitan"] names `flavor` and `layers`."""
    if spec["home"]:
        sys.path.append(spec["home"])
    from torchtitan.tools import utils  # pyright: ignore[reportMissingImports]  # of the folder given

    if device.type == "cpu":  # it takes a machine without a GPU for one with CUDA
        utils.device_type, utils.device_module = "cpu", torch.cpu
    from torchtitan.components.optimizer import default_adamw  # pyright: ignore[reportMissingImports]
    from torchtitan.config import CompileConfig, ParallelismConfig  # pyright: ignore[reportMissingImports]
    from torchtitan.distributed import ParallelDims  # pyright: ignore[reportMissingImports]
    from torchtitan.distributed import utils as distributed  # pyright: ignore[reportMissingImports]

    parallelism = ParallelismConfig(**HOW)
    distributed.set_spmd_backend(parallelism.spmd_backend)
    join(device)
    dims, compiled = ParallelDims.from_config(parallelism, 1), CompileConfig(enable=spec["compile"])
    model = build(spec, device, parallelism, dims, compiled)
    optimizers = default_adamw(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1).build(model_parts=[model])
    loss_of = chunked_loss(model, spec["shape"]["vocab"], compiled)
    context = distributed.get_spmd_context(parallel_dims=dims)
    count = torch.tensor(spec["shape"]["rows"] * spec["shape"]["sequence"], device=device)

    def step(tokens: Tensor) -> float:
        total = torch.zeros((), device=device)
        optimizers.zero_grad(set_to_none=True)
        for rows in tokens.to(device).split(spec["micro_batch"]):
            with context():
                loss, _ = loss_of(model(rows[:, :-1].contiguous()), rows[:, 1:].contiguous(), count)
                loss.backward()
            total += loss.detach()
        distributed.clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
        optimizers.step()
        return float(total)

    return step


def join(device: torch.device) -> None:
    """A group of one process: FSDP2 holds its weights as in a larger one."""
    file = Path(tempfile.mkdtemp()) / "store"
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{file}", rank=0, world_size=1)
    torch.autograd.set_multithreading_enabled(False)  # as its `init_distributed` has it


def build(spec: dict[str, Any], device: torch.device, parallelism: Any, dims: Any, compiled: Any) -> nn.Module:
    """The model with its own initial values, compiled by blocks, wrapped by FSDP2."""
    from torch.distributed.fsdp import FSDPModule
    from torchtitan.config import TrainingConfig  # pyright: ignore[reportMissingImports]
    from torchtitan.models import llama3  # pyright: ignore[reportMissingImports]
    from torchtitan.models.common.attention import ScaledDotProductAttention  # pyright: ignore[reportMissingImports]
    from torchtitan.models.llama3.sharding import set_llama3_sharding_config  # pyright: ignore[reportMissingImports]

    named = spec["torchtitan"]
    config = llama3.llama3_configs[named["flavor"]](attn_backend="flex")
    config.layers = config.layers[: named["layers"]]
    for layer in config.layers:  # rows are one document, for which its registry has this no longer
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    if spec["precision"] == "float8":
        from torchtitan.components.quantization.float8 import (  # pyright: ignore[reportMissingImports]
            Float8LinearConverter,
        )

        told = Float8LinearConverter.Config(filter_fqns=["lm_head"], model_compile_enabled=compiled.enable)
        told.emulate = device.type == "cpu"
        config = told.build().convert(config)
    set_llama3_sharding_config(config, enable_sp=parallelism.enable_sequence_parallel)
    training = TrainingConfig(mixed_precision_param="bfloat16", seq_len=spec["shape"]["sequence"])
    with torch.device("meta"):
        model = config.build()
    how = {"parallel_dims": dims, "training": training, "parallelism": parallelism}
    model = llama3.parallelize_llama(model, **how, compile_config=compiled, ac_config=None, dump_folder="")
    for module in model.modules():
        if device.type == "cpu" and isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no product with the sum that it would ask for
    model.to_empty(device=device)
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    return model.train()


def chunked_loss(model: nn.Module, vocab: int, compiled: Any) -> Any:
    """The loss of its recipes, which takes the head from the model."""
    from torchtitan.components.loss import (  # pyright: ignore[reportMissingImports]
        ChunkedLossWrapper,
        CrossEntropyLoss,
    )

    within = CrossEntropyLoss.Config(global_vocab_size=vocab)
    loss = ChunkedLossWrapper.Config(loss_fn=within).build(compile_config=compiled)
    loss.set_lm_head(model.lm_head)
    model._skip_lm_head = True  # pyright: ignore[reportArgumentType]  # as its trainer does
    return loss
