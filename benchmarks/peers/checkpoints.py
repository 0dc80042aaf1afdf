"""Ways to save and load the state of one model on some ranks: what `benchmarks.training.checkpoint` runs on each."""

import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.tensor import DTensor

from hornbook.data.batch import Batch
from hornbook.data.loader.loader import Loader
from hornbook.model.build import build_model, parameter_roles
from hornbook.model.config.model import ModelConfig
from hornbook.model.init.init import initial_values
from hornbook.optim.build import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import RankInfo, World, distributed
from hornbook.run.checkpoints.checkpoint_store import CheckpointStore
from hornbook.run.checkpoints.exchange import Exchange
from hornbook.run.checkpoints.snapshot import Buffers, take_snapshot
from hornbook.run.checkpoints.state import ModelSpec, State
from hornbook.run.loop.async_checkpointer import in_background
from hornbook.settings.training import CheckpointConfig, TrainConfig

LEARNING = AdamW.model_validate({"lr": 1e-4})


class Pending(Protocol):
    """A save that goes on."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...


class Way(Protocol):
    """One way to checkpoint."""

    background: bool
    """Whether `save` returns before all is on disk."""

    def save(self, folder: Path) -> Pending | None:
        """Save into a new folder; what is returned, if anything, is still being written."""

    def load(self, folder: Path) -> None: ...


class Ours:
    """A copy in memory, written in the background as Hugging Face files with a manifest; verified, then read."""

    background = True

    def __init__(self, state: State, world: World) -> None:
        self._state, self._world = state, world
        self._buffers = Buffers(world.device)
        take_snapshot(state, self._buffers)

    def _checkpoints(self, folder: Path) -> CheckpointStore:
        store = self._world.store and PrefixStore(f"{folder}{time.monotonic_ns() // 10**12}", self._world.store)
        return CheckpointStore(folder, CheckpointConfig(), Exchange(store, self._world.rank, self._world.size))

    def save(self, folder: Path) -> Pending:
        snapshot, checkpoints = take_snapshot(self._state, self._buffers), self._checkpoints(folder)
        call = in_background(lambda: checkpoints.save(snapshot), gives_way=True)
        return cast(Pending, call)

    def load(self, folder: Path) -> None:
        assert self._checkpoints(folder).restore(self._state) is not None


class TorchDistributed:
    """torch.distributed.checkpoint of the same tensors."""

    def __init__(self, state: State, *, background: bool) -> None:
        self._state, self.background = state, background
        self._group = cast(dist.ProcessGroup, dist.new_group()) if background else None  # on training's it deadlocks

    def _tensors(self) -> dict[str, Any]:
        parameters = dict(self._state.engine.model.named_parameters())
        moments = self._state.moments().items()
        return parameters | {name: _as(parameters[name.rpartition(".")[0]], each.tensor) for name, each in moments}

    def save(self, folder: Path) -> Pending | None:
        if self.background:
            return cast(Pending, async_save(self._tensors(), checkpoint_id=folder, process_group=self._group))
        save(self._tensors(), checkpoint_id=folder)
        return None

    def load(self, folder: Path) -> None:
        load(self._tensors(), checkpoint_id=folder)


class TorchSave:
    """torch.save of what each rank holds to a file of its own, then fsync."""

    background = False

    def __init__(self, state: State, world: World) -> None:
        self._state, self._rank = state, world.rank

    def _tensors(self) -> dict[str, torch.Tensor]:
        weights = {name: shard.tensor.detach() for name, shard in self._state.engine.shards.items()}
        return weights | {name: each.tensor for name, each in self._state.moments().items()}

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / str(self._rank)).open("wb") as file:
            torch.save(self._tensors(), file)
            file.flush()
            os.fsync(file.fileno())

    def load(self, folder: Path) -> None:
        stored, own = torch.load(folder / str(self._rank)), self._tensors()
        for name, tensor in own.items():
            tensor.copy_(stored[name])


def _as(parameter: torch.Tensor, moment: torch.Tensor) -> torch.Tensor:
    """A moment cut as its parameter is."""
    if not isinstance(parameter, DTensor) or moment.dim() == 0:
        return moment
    return DTensor.from_local(
        moment, parameter.device_mesh, parameter.placements, shape=parameter.shape, stride=parameter.stride()
    )


@contextmanager
def prepared(place: RankInfo, spec: dict[str, Any]) -> Iterator[tuple[World, State, dict[str, Way]]]:
    """The state of a model on this rank, and the ways to save it."""
    data = {"data": place.size, "shard": "everything" if place.size > 1 else "none"}
    parallel = ParallelConfig.model_validate(spec.get("parallel", data))
    train = TrainConfig.model_validate({"device": "cpu", "precision": "fp32", "threads": max(1, 2 // place.size)})
    with distributed(parallel, train, place) as world:
        if world.size == 1:
            dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
        config = ModelConfig.model_validate(spec["model"])
        network = build_model(config, spec["vocab"], "meta")
        engine = parallelize(network, parallel, train, world)
        engine.load_stream(initial_values(build_model(config, spec["vocab"], "meta"), config, 1))
        optimizer = build_optimizer(engine.named_parameters, parameter_roles(network), LEARNING)
        loader = SimpleNamespace(clock=0, micro_batch=1, index=SimpleNamespace(sequence=8), seek=lambda _: None)
        state = State(engine, optimizer, cast(Loader, loader), ModelSpec(config, spec["vocab"], None))
        yield world, state, ways(state, world)


def ways(state: State, world: World) -> dict[str, Way]:
    """All contenders."""
    return {
        "hornbook": Ours(state, world),
        "dcp.async_save": TorchDistributed(state, background=True),
        "dcp.save": TorchDistributed(state, background=False),
        "torch.save": TorchSave(state, world),
    }


def saves(place: RankInfo, spec: dict[str, Any]) -> dict[str, Any]:
    """Seconds of `rounds` saves of each way in turn, and of steps, beside a copy of as many bytes.

    `held` and `durable` are of saves in which nothing else is done; `steps` and `writing` of steps without a save and
    while one is written. The last folder of each way stays.
    """
    with prepared(place, spec) as (world, state, contenders):
        snapshot = take_snapshot(state)
        own = sum(part.tensor.nbytes for part in (snapshot.weights | snapshot.moments).values())
        source, target = np.ones(own, np.uint8), np.ones(own, np.uint8)
        batch, copies, steps = make_batch(spec, world), [], []
        found = {name: {"held": [], "durable": [], "writing": []} for name in contenders}
        for _ in range(spec["rounds"] + 1):  # the first is for warming up
            world.barrier()
            copies.append(timed(lambda: np.copyto(target, source)))
            steps.append(statistics.median(timed(lambda: step(state, batch, world)) for _ in range(spec["steps"])))
            for name, way in contenders.items():
                for work in (None, batch) if way.background else (None,):
                    for key, value in save_once(way, place_of(spec, name, world), world, state, work).items():
                        found[name][key].append(value)
        return {"bytes": own, "copy": copies[1:], "steps": steps[1:], "ways": _without_first(found)}


def _without_first(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    return {name: {key: values[1:] for key, values in each.items()} for name, each in found.items()}


def place_of(spec: dict[str, Any], name: str, world: World) -> Path:
    """An empty place for a save; every rank asks for it."""
    folder = Path(spec["folder"]) / name
    world.barrier()
    if world.is_rank0:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    world.barrier()
    return folder


def save_once(way: Way, folder: Path, world: World, state: State, batch: Batch | None) -> dict[str, float]:
    """One save; with a batch, steps are made while it is written, and only their mean time is returned."""
    begun, steps = time.perf_counter(), []
    pending = way.save(folder)
    held = time.perf_counter() - begun
    if batch is not None and pending is not None:
        while not steps or world.all_reduce_max([not pending.done()])[0]:  # one that outlasts the save began within it
            steps.append(timed(lambda: step(state, batch, world)))
    if pending is not None:
        pending.result()
    world.barrier()
    durable = time.perf_counter() - begun
    return {"writing": statistics.mean(steps)} if steps else {"held": held, "durable": durable}


def loads(place: RankInfo, spec: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds of `rounds` loads of each way in turn."""
    with prepared(place, spec) as (world, _, contenders):
        found: dict[str, list[float]] = {name: [] for name in spec["load"]}
        for _ in range(spec["rounds"] + 1):
            for name in spec["load"]:
                world.barrier()
                way = contenders[name]
                found[name].append(timed(lambda way=way, name=name: way.load(Path(spec["folder"]) / name)))
        return {name: seconds[1:] for name, seconds in found.items()}


def timed(act: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def step(state: State, batch: Batch, world: World) -> None:
    """One optimizer step."""
    engine = state.engine
    engine.zero_gradients()
    engine.forward_backward([batch], float(batch.weights.sum()) * world.size)
    engine.clip_gradients(1.0)
    engine.step(state.optimizer)


def make_batch(spec: dict[str, Any], world: World) -> Batch:
    """This rank's rows."""
    rows, length = spec["rows"] // world.size, spec["sequence"]
    tokens = torch.randint(0, spec["vocab"], (rows, length), generator=torch.Generator().manual_seed(world.rank))
    return Batch(
        tokens=tokens,
        targets=tokens.roll(-1, 1),
        weights=torch.ones(rows, length),
        positions=torch.arange(length).expand(rows, -1),
        document_lengths=[(length,)] * rows,
        samples=torch.arange(rows),
        sources=torch.zeros(rows, dtype=torch.int64),
    )
