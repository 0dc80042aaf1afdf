"""Contender: hornbook's Engine on adapters of a frozen model. Usage: -m benchmarks.peers.ours_lora '{...}'."""

import json
import sys
from pathlib import Path

import torch

from benchmarks.peers.batches import batch_of, train_step
from benchmarks.peers.worker import serve
from hornbook.kernels.team import keep_freed_memory
from hornbook.model.build_model import parameter_roles
from hornbook.model.config.surgery_config import Lora, Nf4
from hornbook.model.hf.hf import read_hf
from hornbook.model.surgery.added_values import with_added
from hornbook.model.surgery.operate import build_operated
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.settings.training import TrainConfig


def main() -> None:
    spec = json.loads(sys.argv[1])
    keep_freed_memory()
    config, vocab, stream = read_hf(Path(spec["folder"]))
    lora = Lora(rank=spec["rank"], alpha=spec["alpha"], targets=spec["targets"])
    steps = [Nf4(), lora] if spec["nf4"] else [lora]
    model = build_operated(config, vocab, steps)
    engine = parallelize(model, ParallelConfig(), TrainConfig(precision=spec["precision"], device="cpu"))
    engine.load_stream(with_added(model, stream, 1, None))
    trained = {name: each for name, each in engine.named_parameters.items() if each.requires_grad}
    optimizer = build_optimizer(trained, parameter_roles(model), AdamW(lr=spec["lr"], weight_decay=0.0))
    number = 0

    def step(tokens: torch.Tensor) -> float:
        nonlocal number
        number += 1
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        batch = batch_of(inputs, targets, torch.ones(inputs.shape))
        return train_step(engine, optimizer, [batch], float(inputs.numel()), key=(1, number))

    serve(step, spec["shape"], trained=sum(each.numel() for each in trained.values()))


main()
