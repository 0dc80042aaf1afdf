"""Contender at a recipe's full size, on a GPU if there is one: hornbook's Engine, transformers, litgpt, nanoGPT or
torchtitan.

Usage: python benchmarks/peers/large.py '{"loop": "hornbook", "recipe": "llama-1b", ...}'. Weights are drawn at random
in each library's own way: this compares speed and memory, not losses.
"""

import importlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from worker import serve

Loss = Callable[[Tensor], Tensor]


def hornbook_step(spec: dict[str, Any], device: torch.device) -> Callable[[Tensor], float]:
    """The calls of the training loop, with the recipe's own settings."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from benchmarks.peers.batches import cut, make_batch, train_step
    from hornbook.kernels.team import keep_freed_memory
    from hornbook.model.build_model import build_model, parameter_roles
    from hornbook.model.init.init import initial_values
    from hornbook.optim.build_optimizer import build_optimizer
    from hornbook.parallel.config import ParallelConfig
    from hornbook.parallel.parallelize import parallelize
    from hornbook.settings.resolve import resolve
    from hornbook.settings.training import TrainConfig

    recipe, shape = resolve(spec["recipe"], spec.get("words", []), environ={}).recipe, spec["shape"]
    keep_freed_memory()
    model = build_model(recipe.model, shape["vocab"], device="meta")
    parallel = ParallelConfig.model_validate({"recompute": "block" if spec["recompute"] else "none"})
    precision = "float8" if spec.get("precision") == "float8" else "auto"
    settings: dict[str, Any] = {"device": str(device), "compile": spec["compile"], "precision": precision}
    settings |= {"float8": {"emulate": device.type == "cpu"}}
    engine = parallelize(model, parallel, TrainConfig.model_validate(settings))
    engine.load_stream(initial_values(model, recipe.model, 1))
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(model), recipe.optim)
    count = shape["rows"] * shape["sequence"]

    def step(tokens: Tensor) -> float:
        microbatches = [make_batch(rows) for rows in cut(tokens, spec["micro_batch"])]
        return train_step(engine, optimizer, microbatches, count)

    return step


def transformers_loss(spec: dict[str, Any], device: torch.device) -> tuple[torch.nn.Module, Loss]:
    """GPT-2 or LLaMA of transformers, scaled_dot_product_attention."""
    import transformers

    kind, keys = spec["transformers"]
    config = getattr(transformers, f"{kind}Config")(**keys, use_cache=False)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    model.to(device).train()
    if spec["recompute"]:
        model.gradient_checkpointing_enable()
    call = torch.compile(model) if spec["compile"] else model
    return (
        model,
        lambda rows: call(input_ids=rows[:, :-1], labels=rows[:, :-1], shift_labels=rows[:, 1:].contiguous()).loss,
    )


def litgpt_loss(spec: dict[str, Any], device: torch.device) -> tuple[torch.nn.Module, Loss]:
    """litgpt's GPT with its chunked cross-entropy; its config by name, or by values."""
    litgpt = importlib.import_module("litgpt")
    chunked_cross_entropy = importlib.import_module("litgpt.utils").chunked_cross_entropy
    keys = spec["litgpt"]
    config = litgpt.Config.from_name(**keys) if "name" in keys else litgpt.Config(**keys)
    model = litgpt.GPT(config).to(device)
    call = torch.compile(model) if spec["compile"] else model
    return model, lambda rows: chunked_cross_entropy(call(rows[:, :-1]), rows[:, 1:])


def nanogpt_loss(spec: dict[str, Any], device: torch.device) -> tuple[torch.nn.Module, Loss]:
    """nanoGPT's GPT, from its folder."""
    sys.path.insert(0, spec["home"])
    nanogpt = importlib.import_module("model")
    model = nanogpt.GPT(nanogpt.GPTConfig(**spec["nanogpt"])).to(device)
    call = torch.compile(model) if spec["compile"] else model
    return model, lambda rows: call(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())[1]


LOSSES = {"transformers": transformers_loss, "litgpt": litgpt_loss, "nanoGPT": nanogpt_loss}


def plain_step(spec: dict[str, Any], device: torch.device) -> Callable[[Tensor], float]:
    """Autocast, accumulate, clip, fused AdamW."""
    model, loss_of = LOSSES[spec["loop"]](spec, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(tokens: Tensor) -> float:
        optimizer.zero_grad()
        parts, total = tokens.to(device).split(spec["micro_batch"]), 0.0
        for rows in parts:
            with torch.autocast(device.type, torch.bfloat16):
                loss = loss_of(rows) / len(parts)
            loss.backward()
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    return step


def torchtitan_step(spec: dict[str, Any], device: torch.device) -> Callable[[Tensor], float]:
    """torchtitan's own step, which asks for its installation only here."""
    from large_torchtitan import begin

    return begin(spec, device)


STEPS = {"hornbook": hornbook_step, "torchtitan": torchtitan_step}


def main() -> None:
    """Answer requests."""
    spec = json.loads(sys.argv[1])
    device = torch.device(spec["device"])
    serve(STEPS.get(spec["loop"], plain_step)(spec, device), spec["shape"])


main()
