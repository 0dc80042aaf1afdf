"""What ranks do in the tests of checkpoints across worlds: cases for `run_ranks`.

The state is a function of names, so that every world begins with the same whole and holds its own parts of it.
"""

import errno
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import torch

from hornbook.data.loader.loader import Loader
from hornbook.errors import HornbookError
from hornbook.model.build_model import build_model, parameter_roles
from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.optim.build_optimizer import build_optimizer
from hornbook.optim.config.optim import AdamW
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.parallelize import parallelize
from hornbook.parallel.world import RankInfo, World, distributed
from hornbook.run.checkpoints.checkpoint_store import CheckpointStore
from hornbook.run.checkpoints.rank_exchange import Exchange
from hornbook.run.checkpoints.snapshot import Buffers, take_snapshot
from hornbook.run.checkpoints.state import ModelSpec, State
from hornbook.run.loop.async_checkpointer import in_background
from hornbook.settings.training import CheckpointConfig, TrainConfig
from tests.model.likenesses import gpt2_like
from tests.parallel import odd

VOCAB = 70
MODELS = {
    "gpt2": gpt2_like(width=20, hidden=30, length=7),
    "llama": ModelConfig(layers=2, width=20, heads=2, attention=FullAttentionConfig(kv_heads=1, head_dim=2)),
}
FURTHER = {"further tokens": ModelConfig.model_validate(odd.tree("further tokens", {"layers": 3, "kv_heads": 2}))}


def value(name: str, shape: tuple[int, ...], step: int) -> torch.Tensor:
    """The whole tensor of a name at a step."""
    if not shape:
        return torch.tensor(float(step))
    seed = int.from_bytes(f"{name} {step}".encode(), "little") % 2**63
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def make_state(world: World, model: str, layout: dict[str, Any]) -> State:
    """A state on this rank, all zeros."""
    config = (MODELS | FURTHER)[model]
    train = TrainConfig.model_validate({"device": "cpu", "precision": "fp32", "threads": 1})
    parallel = ParallelConfig.model_validate({"data": world.size, **layout})
    network = build_model(config, VOCAB, "meta")
    engine = parallelize(network, parallel, train, world)
    with torch.no_grad():
        for shard in engine.shards.values():
            shard.tensor.zero_()
    optimizer = build_optimizer(engine.named_parameters, parameter_roles(network), AdamW())
    loader = SimpleNamespace(clock=0, micro_batch=1, index=SimpleNamespace(sequence=8))
    loader.seek = lambda clock: setattr(loader, "clock", clock)
    return State(engine, optimizer, cast(Loader, loader), ModelSpec(config, VOCAB, None))


def parts(state: State, step: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What this rank holds of weights and moments, and what it should be at a step."""
    held = {**state.engine.shards, **state.moments()}
    return [(shard.tensor.detach(), value(name, shard.shape, step)[shard.slices]) for name, shard in held.items()]


def set_to(state: State, step: int) -> None:
    """Let the state be that of a step."""
    for tensor, expected in parts(state, step):
        tensor.copy_(expected)
    state.step, state.tokens = step, step * 16
    state.loader.seek(step * 2)


def is_at(state: State, step: int) -> bool:
    """Whether the state is that of a step, to the bit."""
    equal = all(torch.equal(tensor, expected) for tensor, expected in parts(state, step))
    return equal and (state.step, state.tokens, state.loader.clock) == (step, step * 16, step * 2)


def run_case(
    place: RankInfo, layout: dict[str, Any], folder: str, act: Callable[[World, CheckpointStore], list[Any]]
) -> list[Any]:
    config = ParallelConfig.model_validate({"data": place.size, **layout})
    with distributed(config, TrainConfig.model_validate({"device": "cpu", "threads": 1}), place) as world:
        checkpoints = CheckpointStore(
            Path(folder), CheckpointConfig(keep=5), Exchange(world.store, world.rank, world.size)
        )
        return act(world, checkpoints)


def save(place: RankInfo, model: str, layout: dict[str, Any], folder: str, steps: list[int]) -> list[Any]:
    """Save in the background while the ranks meet in collectives and change everything; returns their sizes."""

    def act(world: World, checkpoints: CheckpointStore) -> list[Any]:
        state, sizes = make_state(world, model, layout), []
        buffers = Buffers(world.device)
        for step in steps:
            set_to(state, step)
            snapshot = take_snapshot(state, buffers)
            sizes.append(sum(part.tensor.numel() for part in (snapshot.weights | snapshot.moments).values()))
            written = in_background(lambda snapshot=snapshot: checkpoints.save(snapshot))
            set_to(state, 99)
            while not world.all_reduce_max([written.done()])[0]:
                world.barrier()
            assert written.result().name == f"step-{step:08d}"
        return sizes

    return run_case(place, layout, folder, act)


def restore(place: RankInfo, model: str, layout: dict[str, Any], folder: str, step: int) -> list[Any]:
    """Read the newest checkpoint: its name, whether it is that of `step`, and what the ledger is to hear."""

    def act(world: World, checkpoints: CheckpointStore) -> list[Any]:
        state = make_state(world, model, layout)
        try:
            found = checkpoints.restore(state)
        except HornbookError as error:
            return [type(error).__name__, str(error)]
        return [found and found.name, is_at(state, step), [note.kind for note in checkpoints.take_notes()]]

    return run_case(place, layout, folder, act)


def import_weights(place: RankInfo, model: str, layout: dict[str, Any], folder: str, step: int) -> list[Any]:
    """Read the weights alone of a folder."""

    def act(world: World, _: CheckpointStore) -> list[Any]:
        state = make_state(world, model, layout)
        state.read_weights(Path(folder))
        shards = state.engine.shards.items()
        return [all(torch.equal(shard.tensor, value(name, shard.shape, step)[shard.slices]) for name, shard in shards)]

    return run_case(place, layout, folder, act)


def fail(place: RankInfo, layout: dict[str, Any], folder: str, rank: int, call: str) -> list[Any]:
    """Save step 1; save step 2 while a system call fails on one rank; save step 3."""

    def act(world: World, checkpoints: CheckpointStore) -> list[Any]:
        state, said = make_state(world, "gpt2", layout), []
        really = getattr(os, call)
        for step in (1, 2, 3):
            set_to(state, step)
            if step == 2 and world.rank == rank:
                setattr(os, call, full)
            try:
                said.append(checkpoints.save(take_snapshot(state)).name)
            except HornbookError as error:
                said.append([type(error).__name__, str(error)])
            setattr(os, call, really)
            world.barrier()
            if world.is_rank0:
                said.append(sorted(path.name for path in Path(folder).iterdir() if path.is_dir()))
        return said

    return run_case(place, layout, folder, act)


def full(*_: Any) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def die(place: RankInfo, layout: dict[str, Any], folder: str, rank: int, when: int) -> list[Any]:
    """Save step 1; in the save of step 2 a rank is killed at its `when`-th write."""

    def act(world: World, checkpoints: CheckpointStore) -> list[Any]:
        state = make_state(world, "gpt2", layout)
        set_to(state, 1)
        checkpoints.save(take_snapshot(state))
        world.barrier()
        set_to(state, 2)
        really, count = os.pwrite, 0

        def counted(*words: Any) -> int:
            nonlocal count
            count += 1
            if count == when and world.rank == rank:
                os.kill(os.getpid(), signal.SIGKILL)
            return really(*words)

        os.pwrite = counted
        checkpoints.save(take_snapshot(state))
        return []

    return run_case(place, layout, folder, act)


def leave(place: RankInfo, folder: str) -> list[Any]:
    """Rank 1 takes part in a save too late: what do both say once rank 0 was told to leave?"""

    def act(world: World, checkpoints: CheckpointStore) -> list[Any]:
        state = make_state(world, "gpt2", {})
        if world.is_rank0:
            threading.Timer(0.3, checkpoints._exchange.cancel).start()
        else:
            world.barrier()
        said: list[Any] = []
        try:
            checkpoints.save(take_snapshot(state))
        except HornbookError as error:
            said = [type(error).__name__, str(error).partition(":")[0]]
        if world.is_rank0:
            said.append(os.listdir(folder))
            world.barrier()
        world.barrier()
        return said

    return run_case(place, {}, folder, act)
