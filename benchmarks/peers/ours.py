"""Contender: hornbook's Transformer, loss, fused AdamW and clipping. Usage: python -m benchmarks.peers.ours '{...}'."""

import json
import sys

import torch
from safetensors.torch import load_file

from benchmarks.peers.worker import serve
from benchmarks.throughput import model_config
from hornbook.model.build import build_model
from hornbook.model.cpu.memory import keep_freed_memory


def main() -> None:
    spec = json.loads(sys.argv[1])
    keep_freed_memory()
    shape = spec["shape"]
    model = build_model(model_config(shape), shape["vocab"]).to_empty(device="cpu")
    model.load_state_dict(load_file(spec["own_weights"]))
    model.compute_dtype = torch.bfloat16 if spec["precision"] == "bf16" else torch.float32
    if spec["compile"]:
        for block in model.blocks.values():
            block.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(tokens: torch.Tensor) -> float:
        optimizer.zero_grad()
        targets = tokens[:, 1:]
        hidden, _ = model(tokens[:, :-1])
        loss = model.head.loss(hidden, targets, torch.full(targets.shape, 1 / targets.numel()))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return float(loss.detach())

    serve(step, shape)


main()
