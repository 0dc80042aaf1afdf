"""Training steps on a GPU beside those of a CPU, in every arithmetic, compiled and not; and NCCL with one rank."""

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.init.init import initial_values
from hornbook.model.layers.transfer import fetch
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel import engine as engine_module
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import World
from hornbook.settings.training import TrainConfig
from tests.gpu import DEVICES, GPU, needs_gpu
from tests.optim.kinds import KINDS, config_of
from tests.parallel.test_device_step import FAMILIES, VOCAB, ragged

CPU = torch.device("cpu")
CLOSE = {"fp32": 2e-4, "bf16": 3e-2, "fp16": 1e-2}
"""Relative difference of losses to those of float32 on a CPU."""


def losses(family: str, device: torch.device, precision: str, *, compiled: bool = False, exact: bool = False) -> Any:
    """Losses of six steps of two microbatches, the second of fewer rows."""
    model, way = FAMILIES[family]
    config = ModelConfig.model_validate({"layers": 2, "width": 64, "heads": 4, **model})
    built = build_model(config, VOCAB)
    train = TrainConfig.model_validate({"precision": precision, "compile": compiled})
    engine = parallelize(built, ParallelConfig(exact=exact), train, World(device))
    engine.load_stream(initial_values(built, config, 1))
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(built), AdamW(lr=1e-2))
    whole, source = way in ("whole", "formula"), config.kind == "encoder_decoder"
    batches = [ragged(rows, rows, whole=whole, source=source) for rows in (3, 2)]
    total, found = sum(float(each.weights.sum()) for each in batches), []
    for step in range(6):
        engine.zero_gradients()
        loss = engine.forward_backward(batches, total, key=(0, step))["loss"]
        engine.clip_gradients(1.0)
        engine.step(optimizer)
        found.append(float(loss) / total)
    return torch.tensor(found)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.filterwarnings("default")
def test_a_device_trains_as_the_cpu_does(family: str, device: torch.device) -> None:
    want, got = losses(family, CPU, "fp32"), losses(family, device, "fp32")
    assert want[-1] < want[0]
    assert torch.allclose(got, want, rtol=CLOSE["fp32"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("family", ["gpt2", "llama, documents", "soft cap"])
@pytest.mark.filterwarnings("default")
def test_narrow_arithmetic_stays_close(family: str, precision: str, device: torch.device) -> None:
    assert torch.allclose(losses(family, device, precision), losses(family, CPU, "fp32"), rtol=CLOSE[precision])


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("family", ["gpt2", "llama, documents", "llama, window", "soft cap", "sinks", "t5"])
@pytest.mark.filterwarnings("default")
def test_compiled_blocks_train_as_the_cpu_does(family: str) -> None:
    torch._dynamo.reset()
    assert torch.allclose(losses(family, GPU, "bf16", compiled=True), losses(family, CPU, "fp32"), rtol=CLOSE["bf16"])


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("default")
def test_a_step_waits_once(kind: str, precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """CUDA's own judge of waits, over forward, backward and update; reading the losses afterwards is the one."""
    config, waits = ModelConfig(layers=2, width=64, heads=4), list[int]()
    model = build_model(config, VOCAB)
    engine = parallelize(model, ParallelConfig(), TrainConfig(precision=precision), World(GPU))
    engine.load_stream(initial_values(model, config, 1))
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(model), config_of(kind))

    def one_wait(*scalars: Tensor) -> list[float]:
        waits.append(len(scalars))
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        try:
            return fetch(*scalars)
        finally:
            torch.cuda.set_sync_debug_mode(mode)

    monkeypatch.setattr(engine_module, "fetch", one_wait)
    for number in range(3):  # the first step makes what later ones use again
        batches = [ragged(rows, rows, whole=True, source=False) for rows in (3, 2)]
        torch.cuda.set_sync_debug_mode("error" if number else "default")
        try:
            engine.zero_gradients()
            losses = engine.forward_backward(batches, 100.0, key=(0, number))
            norm = engine.clip_gradients(1.0)
            engine.step_and_fetch(optimizer, losses["loss"], norm)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(waits) == 3


@pytest.mark.gpu
@needs_gpu
def test_nccl_adds_on_one_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as dist

    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0"), ("RANK", "0"), ("WORLD_SIZE", "1")):
        monkeypatch.setitem(os.environ, name, value)
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        values = torch.arange(5.0, device=GPU)
        dist.all_reduce(values)
        assert values.tolist() == [0, 1, 2, 3, 4]
    finally:
        dist.destroy_process_group()
