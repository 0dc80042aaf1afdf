"""Contender: hornbook's Engine as the training loop drives it. Usage: python -m benchmarks.peers.ours '{...}'."""

import json
import sys

import torch
from safetensors.torch import load_file

from benchmarks.peers.batches import make_batch
from benchmarks.peers.worker import serve
from benchmarks.training.throughput import model_config
from hornbook.kernels.team import keep_freed_memory
from hornbook.model.build import build_model, parameter_roles
from hornbook.optim.build import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.run.config import TrainConfig


def main() -> None:
    spec = json.loads(sys.argv[1])
    shape = spec["shape"]
    keep_freed_memory()
    model = build_model(model_config(shape), shape["vocab"])
    engine = parallelize(model, ParallelConfig(), TrainConfig(precision=spec["precision"], device="cpu"))
    engine.load_stream(load_file(spec["own_weights"]).items())
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(model), AdamW(weight_decay=0.0))

    def step(tokens: torch.Tensor) -> float:
        count = shape["rows"] * shape["sequence"]
        engine.zero_gradients()
        losses = engine.forward_backward([make_batch(tokens)], count)
        engine.clip_gradients(1.0)
        engine.step(optimizer)
        return float(losses["loss"]) / count

    serve(step, shape)


main()
