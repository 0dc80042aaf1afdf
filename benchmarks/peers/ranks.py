"""Contender on several ranks: our Engine, a bare loop over torch's DDP or fully_shard, or the loop of a library.

Usage: python -m benchmarks.peers.ranks '{"loop": "ours", "world": 2, "shard": "none", ...}'. `loop` is "ours", "bare",
or the name of a library whose step is in ranks_NAME.py; the library lies in the folder `home`. Rank 0 is this process's
first child and answers requests; the others learn of them from it.
"""

import functools
import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from benchmarks.contenders.shapes import model_config
from benchmarks.peers.batches import cut, make_batch
from benchmarks.peers.worker import serve
from hornbook.model.build import build_model, parameter_roles
from hornbook.model.config.model import ModelConfig
from hornbook.model.init.init import initial_values
from hornbook.optim.build import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import PRECISIONS, parallelize
from hornbook.parallel.world import RankInfo, World, distributed
from hornbook.settings.training import TrainConfig

Step = Callable[[Tensor], float]


def parallel_of(spec: dict) -> ParallelConfig:
    """The section `[parallel]`: given, or data-parallel ranks alone."""
    data = {"data": spec["world"], "shard": spec["shard"], "exact": spec["exact"]}
    return ParallelConfig.model_validate(spec.get("axes", data))


def ours(spec: dict, world: World) -> Step:
    """The calls of the training loop."""
    shape, settings = spec["shape"], spec.get("model", {})
    config = ModelConfig.model_validate({**model_config(shape).model_dump(), **settings})
    model = build_model(config, shape["vocab"], device="meta")
    train = TrainConfig(precision=spec["precision"], device="cpu")
    engine = parallelize(model, parallel_of(spec), train, world)
    whole = initial_values(build_model(config, shape["vocab"]), config, 1)
    engine.load_stream(whole if settings else load_file(spec["own_weights"]).items())
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(model), AdamW(weight_decay=0.0))
    count = shape["rows"] * shape["sequence"]

    def step(tokens: Tensor) -> float:
        mine = cut(tokens, spec["micro_batch"])[world.data_rank :: world.data_size]
        engine.zero_gradients()
        losses = engine.forward_backward([make_batch(rows) for rows in mine], count)
        engine.clip_gradients(1.0)
        engine.step(optimizer)
        return float(losses["loss"]) / count

    return step


def bare(spec: dict, world: World) -> Step:
    """What a good engineer writes in a page: wrap, accumulate, clip, step; torch averages over ranks."""
    shape = spec["shape"]
    model = build_model(model_config(shape), shape["vocab"]).to_empty(device="cpu")
    model.load_state_dict(load_file(spec["own_weights"]))
    model.compute_dtype = PRECISIONS[spec["precision"]]
    if spec["shard"] == "none":
        call = DistributedDataParallel(model, gradient_as_bucket_view=True)
    else:
        for block in model.blocks.values():
            fully_shard(block)
        fully_shard(model, reshard_after_forward=False)
        call = model
    settings = AdamW(weight_decay=0.0)
    betas = settings.beta1, settings.beta2
    optimizer = torch.optim.AdamW(model.parameters(), settings.lr, betas, settings.eps, weight_decay=0.0, fused=True)
    count = shape["rows"] * shape["sequence"] / world.size

    def step(tokens: Tensor) -> float:
        mine, total = cut(tokens, spec["micro_batch"])[world.rank :: world.size], 0.0
        optimizer.zero_grad(set_to_none=True)
        for number, rows in enumerate(mine):
            if isinstance(call, DistributedDataParallel):
                call.require_backward_grad_sync = number == len(mine) - 1
            batch = make_batch(rows)
            hidden, _ = call(batch.tokens, batch.positions, batch.document_lengths)
            assert model.head is not None
            loss = model.head.losses(hidden, batch.targets, batch.weights)["loss"] / count
            loss.backward()
            total += float(loss.detach())
        clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        mean = torch.tensor(total)
        dist.all_reduce(mean)
        return float(mean) / world.size

    return step


def begin(spec: dict, world: World) -> Step:
    """The step of the loop that is asked for."""
    own = {"ours": ours, "bare": bare}
    if spec["loop"] in own:
        return own[spec["loop"]](spec, world)
    sys.path += [spec["home"]] if spec["home"] else []  # last: what both have is taken from this environment
    return importlib.import_module(f"benchmarks.peers.ranks_{spec['loop']}").begin(spec, world)


def rank_main(spec: dict, rank: int, folder: str) -> None:
    """One rank: all make the same steps; rank 0 times them."""
    size = spec["world"]
    place = RankInfo(rank, size, rank, functools.partial(FileStore, f"{folder}/store", size))
    with distributed(parallel_of(spec), TrainConfig(device="cpu", threads=spec["threads"]), place) as world:
        step = begin(spec, world)
        request = torch.zeros(1, dtype=torch.int64)
        world.set_timeout(3600.0)  # the others wait here while other contenders have their turn

        def together(tokens: Tensor) -> float:
            request[0] = 1
            dist.broadcast(request, 0)
            dist.broadcast(tokens, 0)
            return step(tokens)

        if rank == 0:
            serve(together if size > 1 else step, spec["shape"])
            request[0] = 0
            if size > 1:
                dist.broadcast(request, 0)
            return
        shape = spec["shape"]
        tokens = torch.empty(shape["rows"], shape["sequence"] + 1, dtype=torch.int64)
        while dist.broadcast(request, 0) is None and int(request[0]):
            dist.broadcast(tokens, 0)
            step(tokens)


def main() -> None:
    """Fork the ranks and wait for them."""
    spec = json.loads(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in range(spec["world"]):
            child = os.fork()
            if child == 0:
                rank_main(spec, rank, folder)
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
