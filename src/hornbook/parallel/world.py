"""The ranks of a run, in named axes, and the device of each. One process is a world of one rank: the same code.

The ranks are a grid over `AXES`. Of these, `replica` counts the groups that each hold the whole model, and `shard` the
ranks of a group, which hold it between them; `expert` divides experts alone, and its ranks are data-parallel in all
else. A reduction of tensors names the axes that it is over; control values (stop, save, timeouts) go to all ranks.
They travel on the CPU (gloo), tensors of a CUDA model over NCCL.
"""

import contextlib
import datetime
import functools
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ProcessGroup, Store  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from hornbook.errors import LostDeviceError
from hornbook.kernels.device_errors import device_error
from hornbook.kernels.team import keep_freed_memory
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.device import check_device, choose_device
from hornbook.parallel.traffic.step_clock import Collective, StepClock
from hornbook.parallel.traffic.traffic import Kind, sent_bytes
from hornbook.settings.training import TrainConfig

Value = TypeVar("Value")
Axis = Literal["pipeline", "replica", "shard", "context", "tensor", "expert"]
AXES: tuple[Axis, ...] = ("pipeline", "replica", "shard", "context", "tensor", "expert")
"""Outermost first: ranks that differ in the last axis alone have neighbouring numbers."""
DATA: tuple[Axis, ...] = ("replica", "shard", "expert")
"""Axes whose ranks have microbatches of their own."""
TOGETHER: tuple[Axis, ...] = ("pipeline", "context", "tensor")
"""The other axes, whose ranks compute the same microbatch together."""
TOKENS: tuple[Axis, ...] = ("replica", "shard", "context", "expert")
"""Axes whose ranks see other tokens: losses, router loads, and gradients of what they all hold are summed over them."""
LOSSES: tuple[Axis, ...] = ("pipeline", *TOKENS)
"""Axes that losses are summed over: stages but the last have none of the tokens' own."""
DIVIDING: tuple[Axis, ...] = ("pipeline", "shard", "tensor", "expert")
"""Axes whose ranks may hold different parts of a parameter."""
HYBRID: tuple[Axis, ...] = ("replica", "shard")
"""Axes that fully_shard knows; the mesh has them always."""
JOINED: tuple[tuple[Axis, ...], ...] = (
    DATA,
    TOKENS,
    ("replica", "shard", "context"),
    ("context", "expert"),
    ("shard", "tensor", "expert"),
)
"""Axes that reductions take together: sums over others go axis by axis."""
SETUP_SECONDS = 30.0
"""Longest wait for another rank before the first step."""


@dataclass(frozen=True)
class RankInfo:
    """Rank of this process, number of ranks, and how to reach the store where they meet."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank among those of this machine: the number of its device."""
    connect: Callable[[], Store] | None = None
    """Opens the store where ranks meet; None in a world of one."""
    same_devices: bool = False
    """The ranks of this machine see the same devices; a launcher may show each its own."""
    host: str | None = None
    """The machine of rank 0, where a launcher started ranks on several."""

    @property
    def is_rank0(self) -> bool:
        """Whether this rank writes the files that are written once: ledger, metrics, manifests, console."""
        return self.rank == 0


@dataclass(frozen=True)
class World:
    """The ranks of a run, as one of them sees them. Every rank makes the same collective calls in the same order."""

    device: torch.device
    """Where this rank computes."""
    rank: int = 0
    sizes: Mapping[Axis, int] = field(default_factory=dict)
    """Ranks along each axis; one where an axis is left out."""
    mesh: DeviceMesh | None = None
    """Axes `replica`, `shard` and all others of more than one rank; None in a world of one."""
    joined: Mapping[tuple[Axis, ...], DeviceMesh] = field(default_factory=dict)
    """Several axes as one, of `JOINED` those of more than one rank; without such as hold all ranks."""
    store: Store | None = None
    """Small values by name, seen by all ranks; None in a world of one."""
    opened: list[ProcessGroup] = field(default_factory=list)
    """Groups of `open_group`."""
    timeout: list[float] = field(default_factory=lambda: [SETUP_SECONDS])
    """Seconds that `set_timeout` gave last."""
    memory: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    """Entered where the model gets memory; a dry run makes tensors there that have none."""

    @functools.cached_property
    def clock(self) -> StepClock:
        """Where the time of a step goes, and what crosses ranks in it."""
        return StepClock(self.device)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.axis_size(AXES)

    @property
    def is_rank0(self) -> bool:
        """Whether this rank writes the files that are written once."""
        return self.rank == 0

    @property
    def data_size(self) -> int:
        """Ranks that have microbatches of their own."""
        return self.axis_size(DATA)

    @property
    def data_rank(self) -> int:
        """Number of this rank among them."""
        return self.axis_rank(DATA)

    def axis_size(self, axes: Sequence[Axis]) -> int:
        """Number of ranks that differ from this one along `axes` alone, this one included."""
        return prod(self.sizes.get(axis, 1) for axis in axes)

    def axis_rank(self, axes: Sequence[Axis]) -> int:
        """Number of this rank among those, in the order of ranks."""
        rest, below, found = self.rank, 1, 0
        for axis in reversed(AXES):
            size = self.sizes.get(axis, 1)
            rest, along = divmod(rest, size)
            if axis in axes:
                found, below = found + below * along, below * size
        return found

    def group(self, axes: Sequence[Axis]) -> ProcessGroup | None:
        """The process group of the ranks that differ from this one along `axes` alone; None: that of all ranks."""
        if self.axis_size(axes) == self.size:
            return None
        wide = self._wide(axes) or tuple(axes[:1])
        assert len(wide) == 1 or wide in self.joined, f"there is no group over {axes}"
        assert self.mesh is not None
        return (self.mesh[wide] if len(wide) == 1 else self.joined[wide]).get_group()

    def open_group(self, axes: Sequence[Axis]) -> ProcessGroup:
        """Another process group of the same ranks as `group`: its messages wait for none of the other's."""
        ranks = dist.get_process_group_ranks(self.group(axes) or dist.group.WORLD)
        timeout = datetime.timedelta(seconds=self.timeout[0])
        group = dist.new_group(ranks, timeout, use_local_synchronization=True)
        assert isinstance(group, ProcessGroup)
        self.opened.append(group)
        return group

    def all_reduce_sum(self, tensor: Tensor, axes: Sequence[Axis]) -> Tensor:
        """Sum a tensor over the ranks of some axes, in place; the same bits on each of them."""
        for each in self._grouped(axes):
            with self.collective(each, "all-reduce", tensor.nbytes):
                dist.all_reduce(tensor, group=self.group(each))
        return tensor

    def _grouped(self, axes: Sequence[Axis]) -> list[tuple[Axis, ...]]:
        """One after the other their groups reach all ranks of some axes; none where that is this rank alone."""
        wide = self._wide(axes)
        one_group = len(wide) == 1 or wide in self.joined or self.axis_size(axes) == self.size
        return [wide] if wide and one_group else [(axis,) for axis in wide]

    def collective(self, axes: Sequence[Axis], kind: Kind, size: int, sent: float | None = None) -> Collective:
        """Around a collective that computing waits for: what crosses and the wait count, in the phase `communication`.

        `size` in bytes as of `sent_bytes`; `sent`, where this rank sends other than an even share.
        """
        sent = sent_bytes(kind, size, self.axis_size(axes)) if sent is None else sent
        return self.clock.collective(self.axes_name(axes), kind, sent)

    def axes_name(self, axes: Sequence[Axis]) -> str:
        """Those of `axes` that have several ranks, for people: `shard`, `replica+shard`."""
        return "+".join(self._wide(axes) or axes)

    def _wide(self, axes: Sequence[Axis]) -> tuple[Axis, ...]:
        """Those of more than one rank, in the order of `AXES`."""
        return wide_axes(axes, self.sizes)

    def all_gather(self, tensor: Tensor, axes: Sequence[Axis]) -> list[Tensor]:
        """One tensor of the same shape from every rank of some axes, in the order of ranks."""
        if self.axis_size(axes) == 1:
            return [tensor]
        parts = [torch.empty_like(tensor) for _ in range(self.axis_size(axes))]
        with self.collective(axes, "all-gather", len(parts) * tensor.nbytes):
            dist.all_gather(parts, tensor.contiguous(), group=self.group(axes))
        return parts

    def all_gather_values(self, value: Value, axes: Sequence[Axis]) -> list[Value]:
        """A small value from every rank of some axes, in the order of ranks."""
        if self.axis_size(axes) == 1:
            return [value]
        found: list[Any] = [None] * self.axis_size(axes)
        dist.all_gather_object(found, value, group=self.group(axes))
        return found

    def all_reduce_max(self, values: Sequence[int]) -> list[int]:
        """The largest of each value over all ranks: what any rank wants, all do."""
        if self.size == 1:
            return list(values)
        tensor = torch.tensor(values, dtype=torch.int64)
        dist.all_reduce(tensor, dist.ReduceOp.MAX)
        return tensor.tolist()

    def broadcast(self, value: int, axes: Sequence[Axis] = AXES) -> int:
        """The value of the first of the ranks along some axes, on each of them; by default rank 0's, on all."""
        return int(self._broadcast(torch.tensor(value), axes))

    def broadcast_text(self, text: str, axes: Sequence[Axis] = AXES) -> str:
        """The same of a text."""
        if self.axis_size(axes) == 1:
            return text
        data = text.encode()
        size = self.broadcast(len(data), axes)
        held = list(data) if self.axis_rank(axes) == 0 else [0] * size
        return bytes(self._broadcast(torch.tensor(held, dtype=torch.uint8), axes).tolist()).decode()

    def _broadcast(self, tensor: Tensor, axes: Sequence[Axis]) -> Tensor:
        for each in self._grouped(axes):
            dist.broadcast(tensor, group=self.group(each), group_src=0)
        return tensor

    def barrier(self) -> None:
        """Return when every rank has come here."""
        self.all_reduce_max([0])

    def set_timeout(self, seconds: float) -> None:
        """From now on a collective that waits longer fails."""
        self.timeout[0] = seconds
        if self.size > 1:
            assert self.mesh is not None
            joined = (mesh.get_group() for mesh in self.joined.values())
            for group in (None, self.group(DATA), *self.mesh.get_all_groups(), *joined, *self.opened):
                dist.distributed_c10d._set_pg_timeout(datetime.timedelta(seconds=seconds), group)


@contextlib.contextmanager
def distributed(parallel: ParallelConfig, train: TrainConfig, rank_info: RankInfo | None = None) -> Iterator[World]:
    """The world of this run; threads and numerics are set while it is open."""
    rank_info = rank_info or RankInfo()
    sizes = axis_sizes(parallel)
    assert rank_info.size == prod(sizes.values()), (rank_info.size, sizes)
    threads = torch.get_num_threads()
    if train.threads:
        torch.set_num_threads(train.threads)
    device = choose_device(train.device, rank_info.local_rank, rank_info.same_devices)
    check_device(device)
    if device.type == "cpu":
        keep_freed_memory()
    try:
        if rank_info.size == 1:
            yield World(device)
            return
        assert rank_info.connect is not None
        store = rank_info.connect()
        join(store, rank_info, device)
        try:
            world = World(device, rank_info.rank, sizes, *open_meshes(device, sizes), store)
            world.barrier()  # a rank that went on and left would close connections the others have yet to see open
            yield world
            world.barrier()  # what a rank was told last, the others may still be reading in the store of rank 0
        except BaseException as error:
            if not isinstance(device_error(error), LostDeviceError):  # to close NCCL would wait for the device
                dist.destroy_process_group()
            raise
        else:
            dist.destroy_process_group()
    finally:
        torch.set_num_threads(threads)


def axis_sizes(parallel: ParallelConfig) -> dict[Axis, int]:
    """Ranks along each axis that a configuration can widen."""
    data: dict[Axis, int] = {"replica": parallel.data}
    if parallel.shard != "none":
        data = {"replica": parallel.replicas, "shard": parallel.data // parallel.replicas}
    others: dict[Axis, int] = {
        "pipeline": parallel.pipeline.stages,
        "context": parallel.context.ranks,
        "tensor": parallel.tensor,
        "expert": parallel.expert,
    }
    data.update((axis, size) for axis, size in others.items() if size > 1)
    return data


def wide_axes(axes: Sequence[Axis], sizes: Mapping[Axis, int]) -> tuple[Axis, ...]:
    """Those of more than one rank, in the order of `AXES`."""
    found: list[Axis] = [axis for axis in AXES if axis in axes and sizes.get(axis, 1) > 1]
    return tuple(found)


def others(axes: Sequence[Axis], without: Sequence[Axis]) -> tuple[Axis, ...]:
    """Those of `axes` that are not in `without`, in their order."""
    found: list[Axis] = [axis for axis in axes if axis not in without]
    return tuple(found)


def open_meshes(
    device: torch.device, sizes: Mapping[Axis, int]
) -> tuple[DeviceMesh, dict[tuple[Axis, ...], DeviceMesh]]:
    """`World.mesh` and `World.joined`, with their process groups."""
    names: tuple[Axis, ...] = tuple(axis for axis in AXES if axis in HYBRID or sizes.get(axis, 1) > 1)
    shape = tuple(sizes.get(axis, 1) for axis in names)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)
    joined = dict[tuple[Axis, ...], DeviceMesh]()
    for axes in JOINED:
        wide = wide_axes(axes, sizes)
        if len(wide) > 1 and prod(sizes[axis] for axis in wide) < prod(shape) and wide not in joined:
            joined[wide] = mesh[wide]._flatten("+".join(wide))
    return mesh, joined


def name_loopback() -> None:
    """Where this machine's own name does not resolve, as in many containers, name the loopback interface to gloo.

    It would take that one anyway, and every rank would print a warning.
    """
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), "")
        if loopback:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)


def join(store: Store, rank_info: RankInfo, device: torch.device) -> None:
    """Open the process group; every wait is limited to `SETUP_SECONDS` until `World.set_timeout` says otherwise.

    Raises RuntimeError naming a rank that was there before and does not come.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    name_loopback()
    try:
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=PrefixStore("group", store),
            rank=rank_info.rank,
            world_size=rank_info.size,
            timeout=datetime.timedelta(seconds=SETUP_SECONDS),
        )
    except dist.DistStoreError as error:
        late = re.search(r"/(\d+)$", str(error))  # gloo waits for a key that ends with the rank's number
        who = f"rank {late[1]}" if late else "a rank"
        raise RuntimeError(
            f"{who} timed out: it left during set-up, or could not be reached in {SETUP_SECONDS:g} s; see what it "
            "says itself, and whether a firewall is between (GLOO_SOCKET_IFNAME names the network interface to use)"
        ) from error
