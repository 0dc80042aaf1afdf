"""Copies of the state in memory that outlives ranks: a restart goes back a few steps, and reads no disk.

The supervisor makes the memory before it forks ranks, so a copy is there until the supervisor ends. Each rank copies
all that it holds, in turn into two slots of its own: a death within a copy leaves the one before. Memory is trusted
less than disk. Digests are compared when a copy is read, and a step that is not finite soon after it is blamed on it;
either ends the trust in all copies for as long as the supervisor lives, and ranks go back to the newest checkpoint.
"""

import json
import math
import mmap
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import xxhash
from torch import Tensor

from hornbook.errors import IntegrityError

SLOTS = 2
"""Copies of each rank."""
_PREAMBLE = struct.Struct("=4Q")
"""Mark, bytes of the tensors, bytes of the header behind them, and the header's XXH3-64."""
_MARK = int.from_bytes(b"hornbook")
_ALIGN = 64
_FIRST = 4096
"""Offset of the first tensor."""


class CopyMemory:
    """The slots of all ranks on this machine. They belong to the process that makes them, and are gone with it."""

    def __init__(self, ranks: int) -> None:
        self._trust = mmap.mmap(-1, mmap.PAGESIZE)  # shared with every fork
        self._trust[0] = 1
        self._slots = [[Slot(os.memfd_create(f"copy-{rank}-{i}")) for i in range(SLOTS)] for rank in range(ranks)]

    def of_rank(self, rank: int) -> "RankCopies":
        """The copies of one rank."""
        return RankCopies(self._slots[rank], self._trust)

    def forget(self) -> None:
        """Drop all copies; no rank may be there."""
        for rank in range(len(self._slots)):
            self.of_rank(rank).forget()

    def newest(self, ranks: int) -> int:
        """The newest step of which each of so many ranks has a copy; -1 where there is none, or none is trusted."""
        if not self._trust[0]:
            return -1
        held = [{slot.step for slot in slots} for slots in self._slots[:ranks]]
        return max(set[int].intersection(*held), default=-1)


class RankCopies:
    """The copies of one rank: newest step first where several are asked for."""

    def __init__(self, slots: list["Slot"], trust: mmap.mmap) -> None:
        self._slots, self._trust = slots, trust

    @property
    def trusted(self) -> bool:
        """Whether copies may be used; false on every rank once one rank has called `distrust`."""
        return bool(self._trust[0])

    def distrust(self) -> None:
        """From now on nobody uses or makes copies."""
        self._trust[0] = 0

    @property
    def steps(self) -> list[int]:
        """Steps of which there is a whole copy."""
        return [slot.step for slot in self._slots if slot.step >= 0] if self.trusted else []

    def missing_bytes(self, tensors: Mapping[str, Tensor]) -> int:
        """Bytes of memory that copies of these tensors need beyond what the slots hold already."""
        size = _Layout.of(tensors).size
        return sum(max(size - slot.size, 0) for slot in self._slots)

    def write(self, step: int, counters: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Copy the state of a step over the older of the copies. Raises OSError where there is no memory for it."""
        min(self._slots, key=lambda slot: slot.step).write(step, counters, tensors)

    def read(self, step: int, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Copy the state of a step into `tensors`; returns its counters.

        Raises IntegrityError naming what is not as it was written, or does not fit; `tensors` are then as they were.
        """
        return next(slot for slot in self._slots if slot.step == step).read(tensors)

    def forget(self) -> None:
        """Drop all copies: the state comes from elsewhere, and they are of steps that may go otherwise now."""
        for slot in self._slots:
            slot.clear()


@dataclass(frozen=True)
class _Layout:
    """Where each tensor lies in a slot."""

    offsets: dict[str, int]
    size: int
    digest: str

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "_Layout":
        offsets, end = dict[str, int](), _FIRST
        for name, tensor in tensors.items():
            offsets[name] = end
            end += math.ceil(tensor.nbytes / _ALIGN) * _ALIGN
        shapes = [(name, str(tensor.dtype), list(tensor.shape)) for name, tensor in tensors.items()]
        return cls(offsets, end, xxhash.xxh3_64_hexdigest(json.dumps(shapes).encode()))


class Slot:
    """Memory for one copy: a preamble, the tensors, and a header that describes them.

    The preamble is written last and wiped first, so a copy that was not finished does not count.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._mapped: mmap.mmap | None = None

    @property
    def size(self) -> int:
        """Bytes of memory that it holds."""
        return os.fstat(self._file).st_size

    @property
    def step(self) -> int:
        """Step of the copy; -1 where there is none."""
        header = self._header()
        return -1 if header is None else header["step"]

    def clear(self) -> None:
        """Drop the copy; the memory stays."""
        if self.size:
            os.pwrite(self._file, bytes(_PREAMBLE.size), 0)

    def write(self, step: int, counters: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Replace the copy. Raises OSError where there is no memory for it."""
        self.clear()
        layout = _Layout.of(tensors)
        if self.size < layout.size:
            os.posix_fallocate(self._file, 0, layout.size)  # an error here, not a signal at the first write
        memory, digests = self._map(layout.size), dict[str, int]()
        for name, tensor in tensors.items():
            copy = _view(memory, layout.offsets[name], tensor)
            copy.copy_(tensor.detach())
            digests[name] = _digest(memory, layout.offsets[name], tensor)
        described = {"step": step, "counters": counters, "layout": layout.digest, "digests": digests}
        header = json.dumps(described).encode()
        os.pwrite(self._file, header, layout.size)
        preamble = _PREAMBLE.pack(_MARK, layout.size, len(header), xxhash.xxh3_64_intdigest(header))
        os.pwrite(self._file, preamble, 0)

    def read(self, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Copy into `tensors`; returns the counters. Raises IntegrityError before the first is touched."""
        header, layout = self._header(), _Layout.of(tensors)
        if header is None or header["layout"] != layout.digest:
            raise IntegrityError("the copy in memory is of a state with other tensors")
        memory = self._map(layout.size)
        for name, tensor in tensors.items():
            if _digest(memory, layout.offsets[name], tensor) != header["digests"][name]:
                raise IntegrityError(f"the copy of step {header['step']} in memory is damaged: {name} has other bits")
        for name, tensor in tensors.items():
            tensor.detach().copy_(_view(memory, layout.offsets[name], tensor))
        return header["counters"]

    def _header(self) -> dict[str, Any] | None:
        """The header, if the copy is whole; a damaged one is none."""
        preamble = os.pread(self._file, _PREAMBLE.size, 0)
        if len(preamble) < _PREAMBLE.size:
            return None
        mark, end, size, digest = _PREAMBLE.unpack(preamble)
        if mark != _MARK or end + size > self.size:
            return None
        header = os.pread(self._file, size, end)
        return json.loads(header) if xxhash.xxh3_64_intdigest(header) == digest else None

    def _map(self, size: int) -> mmap.mmap:
        if self._mapped is None or len(self._mapped) < size:
            self._mapped = mmap.mmap(self._file, size)
        return self._mapped


def _view(memory: mmap.mmap, offset: int, tensor: Tensor) -> Tensor:
    """The place of a tensor in a slot, as a tensor of the same shape."""
    if not tensor.numel():
        return torch.empty(tensor.shape, dtype=tensor.dtype)
    return torch.frombuffer(memory, dtype=tensor.dtype, count=tensor.numel(), offset=offset).view(tensor.shape)


def _digest(memory: mmap.mmap, offset: int, tensor: Tensor) -> int:
    with memoryview(memory) as view, view[offset : offset + tensor.nbytes] as part:
        return xxhash.xxh3_64_intdigest(part)
