"""Contender: nanochat's model and Muon with the calls of its training script. Usage: nanochat_loop.py '{...}'.

It is another model (untied, value embeddings, squared ReLU), so its losses are its own.
"""

import json
import os
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
from worker import serve


def main() -> None:
    """Whole attention in every layer, as its run for CPUs has it."""
    spec = json.loads(sys.argv[1])
    os.environ["NANOCHAT_DTYPE"] = {"bf16": "bfloat16", "fp32": "float32"}[spec["precision"]]
    sys.path.insert(0, spec["home"])
    from nanochat.gpt import GPT, GPTConfig  # pyright: ignore[reportMissingImports]

    shape = spec["shape"]
    sizes = {"n_layer": shape["layers"], "n_head": shape["heads"], "n_kv_head": shape["heads"]}
    sizes |= {"n_embd": shape["width"], "sequence_len": shape["sequence"], "vocab_size": shape["vocab"]}
    with torch.device("meta"):
        model = GPT(GPTConfig(**sizes, window_pattern="L"))
    model.to_empty(device="cpu")
    model.init_weights()
    optimizer = model.setup_optimizer()
    run = torch.compile(model, dynamic=False) if spec["compile"] else model

    def step(tokens: Tensor) -> float:
        loss = run(tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        return float(loss.detach())

    serve(step, shape, parameters=sum(each.numel() for each in model.parameters()))


main()
