"""The processes and the device a model is spread over. One process is a mesh of one: the same code.

Data-parallel ranks form a grid of `replicas` groups: the ranks of a group hold the model between them, and every
group holds all of it. Control values travel on the CPU (gloo), tensors of a CUDA model over NCCL.
"""

import contextlib
import datetime
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hornbook.errors import UsageError
from hornbook.model.cpu.memory import keep_freed_memory
from hornbook.parallel.config import ParallelConfig
from hornbook.run.config import TrainConfig

SETUP_SECONDS = 30.0
"""Longest wait for another rank before the first step."""


@dataclass(frozen=True)
class Place:
    """Which rank this process is, of how many, and how it meets the others."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank among those of this machine: the number of its device."""
    connect: Callable[[], Store] | None = None
    """Opens the store where ranks meet; None in a world of one."""
    same_devices: bool = False
    """The ranks of this machine see the same devices; a launcher may show each its own."""

    @property
    def leads(self) -> bool:
        """Whether this rank writes what is written once: ledger, metrics, manifests, console."""
        return self.rank == 0


@dataclass(frozen=True)
class Mesh:
    """Where this process computes, and its place among the others."""

    device: torch.device
    rank: int = 0
    size: int = 1
    grid: DeviceMesh | None = None
    """Dims `replica` and `shard`; None in a world of one."""
    store: Store | None = None
    """Small values by name, seen by all ranks; None in a world of one."""

    @property
    def leads(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.rank == 0

    def agree(self, values: Sequence[int]) -> list[int]:
        """The largest of each value over all ranks: what any rank wants, all do."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.tolist()

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum a tensor over all ranks, in place; the same bits on each."""
        if self.size > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """One tensor of the same shape from every rank, in the order of ranks."""
        if self.size == 1:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        dist.all_gather(parts, tensor.contiguous())
        return parts

    def of_leader(self, value: int) -> int:
        """Rank 0's value, on every rank."""
        if self.size == 1:
            return value
        tensor = torch.tensor(value)
        dist.broadcast(tensor, 0)
        return int(tensor)

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self.agree([0])

    def limit(self, seconds: float) -> None:
        """From now on a collective that waits longer fails."""
        if self.size > 1:
            assert self.grid is not None
            for group in (None, *self.grid.get_all_groups()):
                dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), group)


@contextlib.contextmanager
def distributed(parallel: ParallelConfig, train: TrainConfig, place: Place | None = None) -> Iterator[Mesh]:
    """The mesh of this run; threads and numerics are set for the time it is open."""
    place = place or Place()
    assert place.size == parallel.data, (place.size, parallel.data)
    threads = torch.get_num_threads()
    if train.threads:
        torch.set_num_threads(train.threads)
    device = choose_device(train.device, place.local_rank, place.same_devices)
    if device.type == "cpu":
        keep_freed_memory()
    try:
        if place.size == 1:
            yield Mesh(device)
            return
        assert place.connect is not None
        store = place.connect()
        join(store, place, device)
        try:
            shape = (parallel.replicas, parallel.data // parallel.replicas)
            grid = init_device_mesh(device.type, shape, mesh_dim_names=("replica", "shard"))
            mesh = Mesh(device, place.rank, place.size, grid, store)
            mesh.barrier()  # a rank that went on and left would close connections the others have yet to see open
            yield mesh
            mesh.barrier()  # what a rank was told last, the others may still be reading in the store of rank 0
        finally:
            dist.destroy_process_group()
    finally:
        torch.set_num_threads(threads)


def join(store: Store, place: Place, device: torch.device) -> None:
    """Open the process group; every wait is limited to `SETUP_SECONDS` until `Mesh.limit` says otherwise.

    Raises RuntimeError naming a rank that was there before and does not come.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore("group", store),
            rank=place.rank,
            world_size=place.size,
            timeout=datetime.timedelta(seconds=SETUP_SECONDS),
        )
    except dist.DistStoreError as error:
        late = re.search(r"/(\d+)$", str(error))  # gloo waits for a key that ends with the rank's number
        who = f"rank {late[1]}" if late else "a rank"
        raise RuntimeError(
            f"{who} timed out: it left during set-up, or could not be reached in {SETUP_SECONDS:g} s; see what it "
            "says itself, and whether a firewall is between (GLOO_SOCKET_IFNAME names the network interface to use)"
        ) from error


def choose_device(name: str, local_rank: int = 0, same_devices: bool = False) -> torch.device:
    """`auto` takes CUDA, else MPS, else the CPU; a name that is not there is a UsageError.

    Of several CUDA devices a rank takes the one of its number, unless the name gives one. One device alone may be what
    a launcher shows of several, unless all ranks see the same (`same_devices`).
    """
    # Through NVML: a process that has initialised CUDA cannot fork ranks that use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    kind, _, index = name.partition(":")
    if kind not in available:
        raise UsageError(f"train.device is {name!r}: write auto, cpu, cuda, cuda:N or mps")
    if not available[kind]:
        raise UsageError(f"train.device is {name!r}, but this torch sees no {kind} device: use --train.device cpu")
    if kind != "cuda":
        return torch.device(name)
    count = torch.cuda.device_count()
    if local_rank and (index or (local_rank >= count and (count > 1 or same_devices))):
        there = f"train.device {name}" if index else f"{count} on this machine"
        raise UsageError(
            f"rank {local_rank} of this machine would share a GPU with another ({there}): lower --parallel.data to the "
            "number of GPUs, or use --train.device cpu"
        )
    return torch.device(name) if index else torch.device("cuda", local_rank if count > 1 else 0)
