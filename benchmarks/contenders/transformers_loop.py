"""Contender: a model of transformers in a plain loop. Usage: transformers_loop.py '{"checkpoint": ..., ...}'."""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
from worker import serve


def main() -> None:
    """Autocast, clip, fused AdamW."""
    spec = json.loads(sys.argv[1])
    load = AutoModelForCausalLM.from_pretrained
    model = load(spec["checkpoint"], attn_implementation=spec["attention"], dtype=torch.float32).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    run = torch.compile(model) if spec["compile"] else model
    bf16 = spec["precision"] == "bf16"

    def step(tokens: torch.Tensor) -> float:
        optimizer.zero_grad()
        inputs, targets = tokens[:, :-1], tokens[:, 1:].contiguous()
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = run(input_ids=inputs, labels=inputs, shift_labels=targets, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    serve(step, spec["shape"], parameters=sum(each.numel() for each in model.parameters()))


main()
