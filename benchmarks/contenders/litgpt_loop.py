"""Contender: litgpt's GPT under Lightning Fabric, with the calls of its pretraining. Usage: litgpt_loop.py '{...}'.

It has no learned positions: for a shape that has them, rotary ones take their place and the weights are its own.
"""

# pyright: reportMissingImports=false

import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from litgpt.config import Config
from litgpt.model import GPT
from litgpt.utils import chunked_cross_entropy, instantiate_torch_optimizer
from safetensors.torch import load_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
from worker import serve

NAMES = {"input_layernorm": "norm_1", "post_attention_layernorm": "norm_2", "o_proj": "proj", "gate_proj": "fc_1"}
NAMES |= {"up_proj": "fc_2", "down_proj": "proj", "self_attn": "attn", "layers": "h", "norm": "ln_f"}


def config_of(shape: dict[str, int], checkpoint: Path) -> Config:
    """A shape in its terms."""
    sizes: dict[str, Any] = {"n_layer": shape["layers"], "n_head": shape["heads"], "n_embd": shape["width"]}
    sizes |= {"vocab_size": shape["vocab"], "padded_vocab_size": shape["vocab"], "block_size": shape["sequence"]}
    sizes |= {"intermediate_size": shape["hidden"], "parallel_residual": False, "rotary_percentage": 1.0}
    if not shape["gated"]:
        return Config(**sizes, bias=True, gelu_approximate="tanh")
    eps = json.loads((checkpoint / "config.json").read_text())["rms_norm_eps"]
    return Config(**sizes, bias=False, norm_class_name="RMSNorm", norm_eps=eps, mlp_class_name="LLaMAMLP")


def weights_of(checkpoint: Path, layers: int) -> dict[str, Tensor]:
    """transformers' LLaMA under its names; query, key and value are one matrix."""
    found = {name.removeprefix("model."): each for name, each in load_file(checkpoint / "model.safetensors").items()}
    embedding = found.pop("embed_tokens.weight")
    made = {"transformer.wte.weight": embedding, "lm_head.weight": embedding}
    for layer in range(layers):
        parts = [found.pop(f"layers.{layer}.self_attn.{part}_proj.weight") for part in "qkv"]
        made[f"transformer.h.{layer}.attn.qkv.weight"] = torch.cat(parts)
    for name, each in found.items():
        made["transformer." + ".".join(NAMES.get(part, part) for part in name.split("."))] = each
    return made


def main() -> None:
    """Forward, backward, clip and step by Fabric."""
    spec = json.loads(sys.argv[1])
    shape, checkpoint = spec["shape"], Path(spec["checkpoint"])
    precision = "bf16-mixed" if spec["precision"] == "bf16" else "32-true"
    fabric = lightning.Fabric(accelerator="cpu", devices=1, precision=precision)
    model = GPT(config_of(shape, checkpoint))
    model.apply(model._init_weights)
    model.transformer.wte.weight = model.lm_head.weight
    if shape["gated"]:
        model.load_state_dict(weights_of(checkpoint, shape["layers"]))
    parameters = sum(each.numel() for each in model.parameters())
    model = fabric.setup(torch.compile(model) if spec["compile"] else model)
    settings: dict[str, Any] = {"class_path": "torch.optim.AdamW"}
    settings["init_args"] = {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.0}
    optimizer = fabric.setup_optimizers(instantiate_torch_optimizer(settings, model.parameters(), fused=False))

    def step(tokens: Tensor) -> float:
        loss = chunked_cross_entropy(model(tokens[:, :-1].contiguous()), tokens[:, 1:].contiguous())
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    serve(step, shape, parameters=parameters)


main()
