r"""The step of torchtitan's training loop on its own Llama of the shape: FSDP2 or tensor parallelism as it does it.

    pip install --no-deps --target FOLDER torchtitan==0.3.0 spmd_types==0.2.3 triton tyro docstring-parser typeguard \
        torchdata einops torch_checkpointing
    export BENCH_TORCHTITAN=FOLDER

No compilation and no checkpointing of activations, as everywhere in the table. With weights that are tied it refuses
pipelines. Its backend "spmd_types" hands plain tensors to torch's fully_shard, which torch 2.13 refuses: it is set to
"partial_dtensor".
"""

# ruff: noqa: E402 - a variable of its first module decides what its others take for the device

# pyright: reportMissingImports=false

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate
from torchtitan.tools import utils

from benchmarks.peers.batches import cut
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.world import World

utils.device_type, utils.device_module = "cpu", torch.cpu  # it takes a machine without a GPU for one with CUDA

from torchtitan.components.loss import CrossEntropyLoss
from torchtitan.components.optimizer import default_adamw
from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
from torchtitan.distributed import ParallelDims
from torchtitan.distributed import utils as distributed
from torchtitan.models import llama3
from torchtitan.models.common.attention import ScaledDotProductAttention
from torchtitan.models.common.config_utils import make_ffn_config, make_gqa_config
from torchtitan.models.llama3.model import Llama3TransformerBlock
from torchtitan.models.llama3.sharding import set_llama3_sharding_config
from torchtitan.models.llama3.state_dict_adapter import Llama3StateDictAdapter

NORMAL = {"weight": partial(nn.init.normal_, std=0.02)}


def config_of(shape: dict[str, int], checkpoint: Path) -> llama3.Llama3Model.Config:
    """A shape in its terms."""
    width, vocab = shape["width"], shape["vocab"]
    given = json.loads((checkpoint / "config.json").read_text())
    sizes = {"normalized_shape": width, "eps": given["rms_norm_eps"], "param_init": {"weight": nn.init.ones_}}
    norm, last = llama3.RMSNorm.Config(**sizes), llama3.RMSNorm.Config(**sizes)  # they are divided differently
    theta = given.get("rope_theta") or given["rope_parameters"]["rope_theta"]
    rope = llama3.ComplexRoPE.Config(dim=width // shape["heads"], max_seq_len=shape["sequence"], theta=theta)
    attention = make_gqa_config(
        dim=width,
        n_heads=shape["heads"],
        wqkv_param_init=NORMAL,
        wo_param_init=NORMAL,
        rope=rope,
        inner_attention=ScaledDotProductAttention.Config(),
        fuse_qkv=True,
    )
    mlp = make_ffn_config(dim=width, hidden_dim=shape["hidden"], w1_param_init=NORMAL, w2w3_param_init=NORMAL)
    parts = {"attention_norm": norm, "ffn_norm": norm, "attention": attention, "feed_forward": mlp}
    return llama3.Llama3Model.Config(
        dim=width,
        vocab_size=vocab,
        enable_weight_tying=True,
        norm=last,
        tok_embeddings=llama3.Embedding.Config(num_embeddings=vocab, embedding_dim=width, param_init=NORMAL),
        lm_head=llama3.Linear.Config(in_features=width, out_features=vocab, param_init=NORMAL),
        layers=[Llama3TransformerBlock.Config(**parts) for _ in range(shape["layers"])],
    )


def build(spec: dict[str, Any], parallelism: ParallelismConfig, dims: ParallelDims) -> nn.Module:
    """The model, divided, with the weights of the checkpoint."""
    checkpoint = Path(spec["checkpoint"])
    config = config_of(spec["shape"], checkpoint)
    set_llama3_sharding_config(config, enable_sp=parallelism.enable_sequence_parallel)
    whole = config.build()
    with torch.device("meta"):
        model = config.build()
    dtype = {"fp32": "float32", "bf16": "bfloat16"}[spec["precision"]]
    training = TrainingConfig(mixed_precision_param=dtype, seq_len=spec["shape"]["sequence"])
    how = {"parallel_dims": dims, "training": training, "parallelism": parallelism}
    model = llama3.parallelize_llama(model, **how, compile_config=CompileConfig(), ac_config=None, dump_folder="")
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo has no product with the sum that it would ask for
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    weights = load_file(checkpoint / "model.safetensors")
    weights.setdefault("lm_head.weight", weights["model.embed_tokens.weight"])
    whole.load_state_dict(Llama3StateDictAdapter(config, None).from_hf(weights))
    with torch.no_grad():
        for mine, source in zip(model.parameters(), whole.parameters(), strict=True):
            mesh = mine.device_mesh
            mine.copy_(DTensor.from_local(source, mesh, [Replicate()] * mesh.ndim, run_check=False))
    return model.train()


def begin(spec: dict[str, Any], world: World) -> Callable[[Tensor], float]:
    """Forward and backward of each microbatch with the sum's share of the loss, its clipping and its optimizer."""
    parallelism = ParallelismConfig(**spec["degrees"], spmd_backend="partial_dtensor")
    distributed.set_spmd_backend(parallelism.spmd_backend)
    dims = ParallelDims.from_config(parallelism, world.size)
    torch.autograd.set_multithreading_enabled(False)  # as its `init_distributed` has it
    model = build(spec, parallelism, dims)
    settings = AdamW(weight_decay=0.0)
    betas = settings.beta1, settings.beta2
    options = default_adamw(lr=settings.lr, betas=betas, eps=settings.eps, weight_decay=0.0)
    optimizers = options.build(model_parts=[model])
    loss_of = CrossEntropyLoss.Config(global_vocab_size=spec["shape"]["vocab"]).build(compile_config=CompileConfig())
    context, data = distributed.get_spmd_context(parallel_dims=dims), dims.dp_replicate * dims.dp_shard
    rank = world.rank if data > 1 else 0
    count = torch.tensor(spec["shape"]["rows"] * spec["shape"]["sequence"])

    def step(tokens: Tensor) -> float:
        total = torch.zeros(())
        optimizers.zero_grad(set_to_none=True)
        for rows in cut(tokens, spec["micro_batch"])[rank::data]:
            with context():
                loss, _ = loss_of(model(rows[:, :-1].contiguous()), rows[:, 1:].contiguous(), count)
                loss.backward()
            total += loss.detach()
        distributed.clip_grad_norm_(list(model.parameters()), 1.0, foreach=True)
        optimizers.step()
        if data > 1:
            dist.all_reduce(total)
        return float(total)

    return step
