"""What a rank holds between two microbatches of a step, measured: `tests/parallel/test_bytes_of_state.py`."""

import gc
import time
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import RankInfo, distributed
from tests.parallel.cases import CPU
from tests.parallel.trajectory import VOCAB, microbatches, share

SIZES = ModelConfig(layers=2, width=128, heads=4, mlp=ExpertsConfig(count=12, active=2, hidden=64))
ROWS = 1024
"""Of the embedding."""


def held(rank_info: RankInfo, settings: dict[str, Any]) -> int:
    """Bytes of all tensors before the last microbatch of the second step, but those that were there before."""
    assert ROWS > VOCAB
    parallel = ParallelConfig.model_validate(settings)
    with distributed(parallel, CPU, rank_info) as world:
        batches = share(microbatches(0, 4 * world.data_size, 24), world)
        before, found = live_bytes(), list[int]()
        engine = parallelize(build_model(SIZES, ROWS), parallel, CPU, world)
        for shard in engine.shards.values():
            shard.tensor.detach().fill_(0.01)
        optimizer = build_optimizer(
            engine.named_parameters, parameter_roles(engine.model), AdamW(), None, engine.shapes, engine.owners
        )
        begin = engine._data_parallel.begin_microbatch

        def measured(**words: bool) -> None:
            if words["last"]:
                found.append(settled_bytes() - before)
            begin(**words)

        engine._data_parallel.begin_microbatch = measured
        for _ in range(2):
            engine.zero_gradients()
            engine.forward_backward(batches, 1.0)
            engine.clip_gradients(1.0)
            engine.step(optimizer)
        return found[-1]


def settled_bytes() -> int:
    """`live_bytes` once it stays: gloo's threads let go of the tensors of a collective a moment after it is done."""
    before, now = -1, live_bytes()
    while now != before:
        time.sleep(0.1)
        before, now = now, live_bytes()
    return now


def live_bytes() -> int:
    """Of the storages of all tensors that Python sees, and of their gradients."""
    gc.collect()
    storages = dict[int, int]()
    for each in gc.get_objects():
        if not issubclass(type(each), Tensor) or each.is_meta:
            continue
        for tensor in (each, each.grad if each.is_leaf else None):
            local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
            if isinstance(local, torch.Tensor) and not local.is_meta:
                storage = local.untyped_storage()
                storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
