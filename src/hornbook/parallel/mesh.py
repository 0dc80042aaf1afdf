"""The processes and the device a model is spread over. One process is a mesh of one: the same code."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from hornbook.errors import UsageError
from hornbook.model.cpu.memory import keep_freed_memory
from hornbook.parallel.config import ParallelConfig
from hornbook.run.config import TrainConfig


@dataclass(frozen=True)
class Mesh:
    """Where this process computes, and its place among the others."""

    device: torch.device
    rank: int = 0
    size: int = 1


@contextlib.contextmanager
def distributed(parallel: ParallelConfig, train: TrainConfig) -> Iterator[Mesh]:
    """The mesh of this run; threads and numerics are set for the time it is open."""
    assert parallel.data == 1
    threads = torch.get_num_threads()
    if train.threads:
        torch.set_num_threads(train.threads)
    device = choose_device(train.device)
    if device.type == "cpu":
        keep_freed_memory()
    try:
        yield Mesh(device)
    finally:
        torch.set_num_threads(threads)


def choose_device(name: str) -> torch.device:
    """`auto` takes CUDA, else MPS, else the CPU; a name that is not there is a UsageError."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        return torch.device(next(kind for kind, there in available.items() if there))
    kind = name.partition(":")[0]
    if kind not in available:
        raise UsageError(f"train.device is {name!r}: write auto, cpu, cuda, cuda:N or mps")
    if not available[kind]:
        raise UsageError(f"train.device is {name!r}, but this torch sees no {kind} device: use --train.device cpu")
    return torch.device(name)
