"""Contender: nanoGPT's model and optimizer with the calls of its training script. Usage: nanogpt_loop.py '{...}'.

For a LLaMA shape it is a GPT of that width and depth with its own weights.
"""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
from worker import serve

TRANSPOSED = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def weights_of(checkpoint: Path) -> dict[str, Tensor]:
    """transformers' GPT-2, whose matrices are the other way round."""
    found = load_file(checkpoint / "model.safetensors")
    made = {name: each.T.contiguous() if name.endswith(TRANSPOSED) else each for name, each in found.items()}
    return made | {"lm_head.weight": made["transformer.wte.weight"]}


def make_model(shape: dict[str, int], checkpoint: Path) -> Any:
    """A GPT of the shape."""
    from model import GPT, GPTConfig  # pyright: ignore[reportMissingImports]  # of the folder given

    sizes = {"n_layer": shape["layers"], "n_head": shape["heads"], "n_embd": shape["width"]}
    model = GPT(GPTConfig(**sizes, block_size=shape["sequence"], vocab_size=shape["vocab"], bias=not shape["gated"]))
    if not shape["gated"]:
        model.load_state_dict(weights_of(checkpoint))
    return model


def main() -> None:
    """Scaler, clip, its choice of AdamW."""
    spec = json.loads(sys.argv[1])
    sys.path.insert(0, spec["home"])
    model = make_model(spec["shape"], Path(spec["checkpoint"]))
    optimizer = model.configure_optimizers(0.0, 3e-4, (0.9, 0.95), "cpu")
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    run = torch.compile(model) if spec["compile"] else model
    bf16 = spec["precision"] == "bf16"

    def step(tokens: Tensor) -> float:
        with torch.autocast("cpu", torch.bfloat16) if bf16 else nullcontext():
            _, loss = run(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    serve(step, spec["shape"], parameters=sum(each.numel() for each in model.parameters()))


main()
