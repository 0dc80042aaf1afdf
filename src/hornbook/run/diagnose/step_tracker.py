"""Counts the memory and the collectives of a step on fake tensors, which have shapes and no values.

Integers and what follows from them alone keep their values, as code asks for them: lengths of documents, positions.
Every operation passes through the mode: the storage of each new tensor adds its bytes and takes them away when the last
tensor on it goes. What a storage was for is known at the end, so the events are kept and added up by category then.
"""

import contextlib
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup  # pyright: ignore[reportPrivateImportUsage]

from hornbook.kernels.torch_versions import (
    FakeTensor,
    TorchDispatchMode,
    process_group_of_name,
    tree_leaves,
    without_modes,
)
from hornbook.parallel.world import AXES, Axis, World

OTHER = "activations, buffers"
GATHERED = "gathered weights"
_NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")
_SHARES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}
"""Bytes that a rank sends of a buffer, times (n - 1) / n, where n ranks form a ring; others send their buffer once."""
_KINDS = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "isend": "send",
    "irecv": "recv",
    "batch_p2p": "send",
    "send": "send",
    "recv": "recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}


@dataclass(frozen=True)
class Collective:
    """Calls of one kind over the same axes."""

    kind: str
    axes: tuple[Axis, ...]
    ranks: int
    count: int
    num_bytes: int
    """Of the larger side of each call: what is gathered, or what is reduced."""

    @property
    def sent(self) -> float:
        """Bytes that this rank sends, with algorithms that send least."""
        if self.kind == "recv":
            return 0.0
        share = _SHARES.get(self.kind)
        return self.num_bytes * (share * (self.ranks - 1) / self.ranks if share else 1.0)


class StepTracker(TorchDispatchMode):
    """A mode that counts; entered inside of a FakeTensorMode."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._events = list[tuple[int, int]]()
        """(number of a storage, bytes added)."""
        self._numbers = dict[int, int]()
        """Storage in use -> its number."""
        self._sizes = list[int]()
        self._gathered = set[int]()
        self._kept = list[Any]()
        self._calls = defaultdict[tuple[str, tuple[Axis, ...], int], list[int]](list)
        self._start = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "prim":  # where a tensor is: two calls of three
            return func(*args, **(kwargs or {}))
        result = _call(func, args, kwargs or {})
        if func.namespace in _NAMESPACES:
            self._count(func, args, result)
        for each in tree_leaves(result):
            self._see(each)
        return result

    def number(self, tensor: Tensor) -> int | None:
        """The number of a tensor's storage; None where it was not seen."""
        return self._numbers.get(tensor.untyped_storage()._cdata)

    def place(self, tensor: Tensor) -> int:
        """A number of its own for each storage, 0 for those of gathered weights."""
        number = self.number(tensor)
        return 0 if number in self._gathered else tensor.untyped_storage()._cdata

    def _see(self, tensor: Any) -> None:
        if not isinstance(tensor, FakeTensor):  # batches and masks, which are small
            return
        storage = tensor.untyped_storage()
        if storage._cdata in self._numbers:
            return
        number = len(self._sizes)
        self._numbers[storage._cdata] = number
        self._sizes.append(storage.nbytes())
        self._events.append((number, storage.nbytes()))
        self._kept.append(weakref.ref(storage, partial(self._forget, storage._cdata, number)))

    def _forget(self, address: int, number: int, _: object) -> None:
        if self._numbers.get(address) == number:
            del self._numbers[address]
        self._events.append((number, -self._sizes[number]))
        self._sizes[number] = 0

    @contextlib.contextmanager
    def resizing(self) -> Iterator[None]:
        """Within it, storages that are freed and allocated again by their size (`fully_shard`) are followed too."""
        original = torch.UntypedStorage.resize_

        def resize_(storage: torch.UntypedStorage, size: int) -> Any:
            result = original(storage, size)
            number = self._numbers.get(storage._cdata)
            if number is not None:
                self._events.append((number, size - self._sizes[number]))
                self._sizes[number] = size
                self._gathered.add(number)
            return result

        with mock.patch.object(torch.UntypedStorage, "resize_", resize_):
            yield

    def begin(self) -> None:
        """Look for the peak, and count collectives, from here on."""
        self._start = len(self._events)
        self._calls.clear()

    # ---- Memory

    def held(self, tensors: Iterable[Tensor]) -> int:
        """Bytes of the storages of some tensors."""
        numbers = {number for each in tensors if (number := self.number(each)) is not None}
        return sum(self._sizes[number] for number in numbers)

    def peak(self, tensors: Mapping[str, Iterable[Tensor]]) -> dict[str, int]:
        """Bytes by category at the moment when most were in use since `begin`; `tensors` of each as they are now."""
        kinds = dict.fromkeys(self._gathered, GATHERED)
        for name, members in tensors.items():
            kinds |= {number: name for each in members if (number := self.number(each)) is not None}
        now, most, best = defaultdict[str, int](int), -1, dict[str, int]()
        total = 0
        for event, (number, change) in enumerate(self._events):
            now[kinds.get(number, OTHER)] += change
            total += change
            if total > most and event >= self._start:
                most, best = total, dict(now)
        return {name: best.get(name, 0) for name in (*tensors, GATHERED, OTHER)}

    # ---- Collectives

    def _count(self, func: Any, args: Any, result: Any) -> None:
        group = next((found for each in reversed(args) if (found := _group_of(each)) is not None), None)
        name = func.name().split("::")[1].lstrip("_").replace("all_", "all")
        kind = next((kind for part, kind in _KINDS.items() if part in name), None)
        if group is None or kind is None:  # a barrier, or waiting for what was counted
            return
        sides = [_bytes_of(each) for each in (*args, result)]
        ranks = dist.get_process_group_ranks(group)
        self._calls[kind, axes_of(self._world, ranks), len(ranks)].append(max(sides))

    @property
    def collectives(self) -> list[Collective]:
        """All calls, those with the most bytes first."""
        rows = (Collective(*key, len(sizes), sum(sizes)) for key, sizes in self._calls.items())
        return sorted(rows, key=lambda row: -row.num_bytes)


def _call(func: Any, args: Any, kwargs: Any) -> Any:
    """The operation on fake tensors; on values where all of it is known: positions, lengths, masks."""
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    if any(isinstance(each, FakeTensor) or each.is_meta for each in tensors):
        return func(*args, **kwargs)
    if not tensors:
        made = func(*args, **kwargs)
        if any(each.is_floating_point() for each in tree_leaves(made) if isinstance(each, Tensor)):
            return made
    with without_modes():
        return func(*args, **kwargs)


def axes_of(world: World, ranks: list[int]) -> tuple[Axis, ...]:
    """The axes along which some ranks differ from each other."""
    places = {axis: set[int]() for axis in AXES}
    for rank in ranks:
        rest = rank
        for axis in reversed(AXES):
            rest, along = divmod(rest, world.sizes.get(axis, 1))
            places[axis].add(along)
    return tuple(axis for axis in AXES if len(places[axis]) > 1)


def _group_of(argument: Any) -> ProcessGroup | None:
    if isinstance(argument, torch.ScriptObject):
        with contextlib.suppress(RuntimeError, ValueError):
            return ProcessGroup.unbox(argument)
    if isinstance(argument, str):
        with contextlib.suppress(RuntimeError, ValueError):
            return process_group_of_name(argument)  # pyright: ignore[reportArgumentType]
    return None


def _bytes_of(argument: Any) -> int:
    tensors = [each for each in tree_leaves(argument) if isinstance(each, Tensor)]
    return sum(prod(each.shape) * each.element_size() for each in tensors)
