"""Steps of one rank of two whose backend is called "nccl", in torch's fake process group: collectives bring nothing.

Copies of the model are on the emulated GPU. FSDP reads storages, which the emulated device has none of: there the
tensors are those of a CPU, and only the backend's name is that of a GPU.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.init.init import initial_values
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.engine import Engine
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.traffic import reduce_scatter
from hornbook.parallel.world import World, axis_sizes, open_meshes
from hornbook.settings.training import TrainConfig
from tests.helpers.emulated_tensor import CUDA, Waits
from tests.optim.kinds import config_of
from tests.parallel.test_device_step import VOCAB, batch

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default::FutureWarning")]
COPIES = {"plain": {}, "exact": {"exact": True}, "bf16": {"compress": "bf16"}}
SHARDS = {
    shard + (", exact" if exact else ""): {"shard": shard, "exact": exact}
    for shard in ("optimizer", "gradients", "everything")
    for exact in (False, True)
} | {"everything, bf16": {"shard": "everything", "compress": "bf16"}}


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A fake group of two whose name is "nccl"; gives the collectives of our own that asked for it."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    monkeypatch.setattr(dist, "get_backend", lambda _=None: "nccl")
    called: list[str] = []

    def noted(module: Any, name: str) -> None:
        act: Callable[..., Any] = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **options: (called.append(name), act(*args, **options))[1])

    noted(reduce_scatter, "reduce_scatter_single")
    yield called
    dist.destroy_process_group()


def make_engine(device: torch.device, **parallel: Any) -> Engine:
    config = ParallelConfig.model_validate({"data": 2, **parallel})
    sizes = axis_sizes(config)
    shape = ModelConfig(layers=2, width=64, heads=4)
    model = build_model(shape, VOCAB, device="meta")
    engine = parallelize(
        model, config, TrainConfig(precision="bf16"), World(device, 0, sizes, *open_meshes(device, sizes))
    )
    engine.load_stream(initial_values(model, shape, 1))
    return engine


def take_steps(engine: Engine, kind: str) -> None:
    roles = parameter_roles(engine.model)
    optimizer = build_optimizer(engine.named_parameters, roles, config_of(kind), None, engine.shapes, engine.owners)
    for step in range(2):
        engine.zero_gradients()
        losses = engine.forward_backward([batch(3, documents=False), batch(2, documents=False)], 100.0, key=(0, step))
        norm = engine.clip_gradients(1.0)
        engine.step_and_fetch(optimizer, losses["loss"], norm)


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("parallel", COPIES.values(), ids=list(COPIES))
def test_a_step_of_copies_waits_once(
    parallel: dict[str, Any],
    kind: str,
    emulated_cuda: Waits,
    nccl: list[str],  # noqa: ARG001
) -> None:
    engine = make_engine(CUDA, **parallel)
    emulated_cuda.clear()
    take_steps(engine, kind)
    places = emulated_cuda.places(draining=False)
    assert sum(places.values()) == 2 * (2 if parallel.get("exact") else 1), places


@pytest.mark.parametrize("kind", ["adamw", "muon"])
@pytest.mark.parametrize("parallel", SHARDS.values(), ids=list(SHARDS))
def test_shards_are_reduced_by_the_backend(parallel: dict[str, Any], kind: str, nccl: list[str]) -> None:
    take_steps(make_engine(torch.device("cpu"), **parallel), kind)
    assert bool(nccl) == (not parallel.get("exact")), nccl  # exact sums are ours, after an all-to-all
