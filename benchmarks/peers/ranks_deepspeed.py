"""The step of DeepSpeed's engine around the same model: `deepspeed.initialize` with ZeRO stage 0, 1, 2 or 3 on gloo.

    pip install --no-deps --no-build-isolation --target FOLDER deepspeed==0.19.8 einops hjson msgpack ninja py-cpuinfo
    export BENCH_DEEPSPEED=FOLDER

Stage 0 is data parallelism. It is no part of the environment, and brings no torch of its own.
"""

# pyright: reportMissingImports=false

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.contenders.shapes import model_config
from benchmarks.peers.batches import cut, make_batch
from hornbook.model.build import build_model
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.parallelize import PRECISIONS
from hornbook.parallel.world import World


class Objective(nn.Module):
    """Rows of tokens -> mean loss; DeepSpeed gathers the weights of stage 3 in the calls of modules alone."""

    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__()
        shape = spec["shape"]
        self.model = build_model(model_config(shape), shape["vocab"]).to_empty(device="cpu")
        self.model.load_state_dict(load_file(spec["own_weights"]))
        self.model.compute_dtype = PRECISIONS[spec["precision"]]

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens: [rows, sequence + 1]."""
        batch, head = make_batch(tokens), self.model.head
        hidden, _ = self.model(batch.tokens, batch.positions, batch.document_lengths)
        assert head is not None
        return head.losses(hidden, batch.targets, batch.weights)["loss"] / batch.targets.numel()


def begin(spec: dict[str, Any], world: World) -> Callable[[Tensor], float]:
    """The calls of its own loop: forward, `backward` and `step` of each microbatch."""
    os.environ |= {"RANK": str(world.rank), "LOCAL_RANK": str(world.rank), "WORLD_SIZE": str(world.size)}
    os.environ |= {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # asked for, not used: the ranks are connected
    import deepspeed

    objective, micro_batch = Objective(spec), spec["micro_batch"]
    if spec["stage"] == 3:  # the head reads the embedding's weight
        assert objective.model.embedding is not None
        deepspeed.zero.register_external_parameter(objective, objective.model.embedding.weight)
    settings = AdamW(weight_decay=0.0)
    betas = settings.beta1, settings.beta2
    optimizer = torch.optim.AdamW(
        objective.parameters(), settings.lr, betas, settings.eps, weight_decay=0.0, fused=True
    )
    config = {
        "train_batch_size": spec["shape"]["rows"],
        "train_micro_batch_size_per_gpu": micro_batch,
        "gradient_clipping": 1.0,
        "zero_optimization": {"stage": spec["stage"]},
    }
    engine, *_ = deepspeed.initialize(model=objective, optimizer=optimizer, config=config)

    def step(tokens: Tensor) -> float:
        mine = cut(tokens, micro_batch)[world.rank :: world.size]
        total = torch.zeros(())
        for rows in mine:
            loss = engine(rows)
            engine.backward(loss)
            engine.step()
            total += loss.detach()
        dist.all_reduce(total)
        return float(total) / len(mine) / world.size

    return step
