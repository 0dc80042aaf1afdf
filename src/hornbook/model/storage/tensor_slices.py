"""Slices of tensors in safetensors files: every rank writes its own bytes of one file.

A file's header fixes the place of each byte. So a file is created once, at its full size, and each rank writes its
slices of a tensor into it; no rank gathers anything, and the bytes do not depend on how tensors were divided.
Format: github.com/huggingface/safetensors, README, "Format".
"""

import contextlib
import errno
import fcntl
import itertools
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Self

import numpy as np
import torch
from torch import Tensor

from hornbook.files.durable import sync_file
from hornbook.files.json_files import write_json
from hornbook.files.safetensors import ITEM_BYTES, Entry, make_header
from hornbook.model.storage.safetensors_folder import CODES, INDEX, SINGLE, plan_shards

CHUNK_BYTES = 16 << 20
"""Longest single write: ranks that write to one file take turns."""
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class TensorSlice:
    """A rectangle of a tensor, which begins at index `start` of the whole (one per dim)."""

    tensor: Tensor
    start: tuple[int, ...]

    def within(self, start: tuple[int, ...]) -> "TensorSlice":
        """The same values as a slice of a larger tensor, in which the one that this is a slice of begins at `start`."""
        return TensorSlice(self.tensor, tuple(a + b for a, b in zip(start, self.start, strict=True)))


def whole(tensor: Tensor) -> TensorSlice:
    """A whole tensor as a slice of itself."""
    return TensorSlice(tensor, (0,) * tensor.dim())


def create_tensors(folder: Path, shapes: Mapping[str, tuple[int, ...]], dtype: str, limit: int) -> None:
    """Create model*.safetensors and their index for tensors in the order given, at most `limit` bytes per file.

    dtype: as torch spells it. Raises OSError, StorageError.
    """
    code = CODES[getattr(torch, dtype)]
    sizes = {name: prod(shape) * ITEM_BYTES[code] for name, shape in shapes.items()}
    plan = plan_shards(sizes, limit)
    for file, names in plan.items():
        create_file(folder / file, {name: shapes[name] for name in names}, code, {"format": "pt"})
    if list(plan) != [SINGLE]:
        where = {name: file for file, names in plan.items() for name in names}
        write_json(folder / INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": where})


def create_file(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: str | Mapping[str, str] = "F32",
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Create a safetensors file at its full size, without values: a full disk shows here. Raises OSError.

    dtype: of all tensors or by name, as the format spells it. The header is byte for byte that of the safetensors
    library.
    """
    dtypes = dict.fromkeys(shapes, dtype) if isinstance(dtype, str) else dtype
    header = make_header(shapes, dtypes, metadata)
    size = len(header) + sum(prod(shape) * ITEM_BYTES[dtypes[name]] for name, shape in shapes.items())
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
    try:
        _reserve(file, size)
        write_at(file, memoryview(header), 0)
    finally:
        os.close(file)


def _reserve(file: int, size: int) -> None:
    """Give a file its full size and allocate its space.

    Where space cannot be allocated (macOS, some network file systems) the file gets the size alone, and a full disk
    shows when the values are written.
    """
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file, 0, size)
            return
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
    os.truncate(file, size)


class Writer:
    """Writes slices into existing files; they are synced to disk when its block ends without error. Raises OSError."""

    def __init__(self) -> None:
        self._files: dict[Path, int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for file in self._files.values() if kind is None else ():
                sync_file(file)
        finally:
            for file in self._files.values():
                os.close(file)

    def write(self, entry: Entry, tensor_slice: TensorSlice) -> None:
        """Write a slice (on the CPU, of the entry's dtype) at its place in the tensor of `entry`."""
        tensor, item = tensor_slice.tensor, tensor_slice.tensor.element_size()
        if tensor.numel() == 0:
            return
        first, _ = next(runs(entry.shape, tensor_slice.start, tuple(tensor.shape)))
        file = self._open(entry.file, entry.begin + first * item)
        array = np.ascontiguousarray(tensor.detach().view(_BITS[item]).numpy())  # numpy starts no threads for this
        data, done = array.reshape(-1).view(np.uint8).data, 0
        for offset, count in runs(entry.shape, tensor_slice.start, tuple(tensor.shape)):
            write_at(file, data[done : done + count * item], entry.begin + offset * item)
            done += count * item

    def _open(self, path: Path, mine: int) -> int:
        """The file's descriptor; `mine` is the offset of a byte that no other rank writes.

        An NFS client may write back the whole page around a write, with the bytes of other ranks as it read them
        before. It does not while any part of the file is locked (Linux, fs/nfs/write.c, nfs_can_extend_write).
        """
        if path not in self._files:
            self._files[path] = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.lockf(self._files[path], fcntl.LOCK_EX | fcntl.LOCK_NB, 1, mine)
        return self._files[path]


def runs(shape: tuple[int, ...], start: tuple[int, ...], part: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """(offset, length) in elements of each contiguous run of a slice of shape `part` in a C-ordered tensor.

    The runs come in the order of the slice's own elements.
    """
    assert len(shape) == len(start) == len(part), (shape, start, part)
    assert all(a >= 0 and a + n <= size for size, a, n in zip(shape, start, part, strict=True)), (shape, start, part)
    inner = len(shape)
    while inner and part[inner - 1] == shape[inner - 1]:
        inner -= 1  # dims that are whole run on into each other
    outer = max(inner - 1, 0)
    strides = [prod(shape[dim + 1 :]) for dim in range(len(shape))]
    first, length = sum(a * stride for a, stride in zip(start, strides, strict=True)), prod(part[outer:])
    steps = [range(0, part[dim] * strides[dim], strides[dim]) for dim in range(outer)]
    for offsets in itertools.product(*steps):
        yield first + sum(offsets), length


def write_at(file: int, data: memoryview, offset: int) -> None:
    """Write all of `data` at a byte offset. Raises OSError."""
    while data:
        count = os.pwrite(file, data[:CHUNK_BYTES], offset)
        data, offset = data[count:], offset + count
