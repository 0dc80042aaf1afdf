"""What a run holds outside the memory of its device (`parallel.offload`): what backward needs, moments, weights.

On disk, moments and weights are shared mappings of files: updates work on them in place, and the system writes pages
out and reads them back as memory asks for it. Tensors kept for backward are written to a file as a forward pass makes
them and read back in backward. On a GPU `cpu` copies them to page-locked memory of the host. Copies keep every bit.
All files are nameless from the start, so nothing is left behind by any end of the process.
"""

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from hornbook.errors import StorageError, UsageError
from hornbook.model.layers.saved_tensors import Hooks, Rebuilding
from hornbook.model.transformer import Transformer
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.config import DiskOffload, Offload

SMALLEST = 2**16
"""Bytes below which a tensor stays where it is."""


def check_offload(config: Offload, device: torch.device) -> None:
    """Raise UsageError where a device cannot do what is asked for."""
    if config.kind == "cpu" and device.type != "cuda":
        text = f"on the device {device} all is in its memory already"
        raise UsageError(f'parallel.offload is "cpu": {text}: take "disk", or parallel.recompute')
    if config.kind == "disk" and device.type != "cpu":
        text = f"mapped files are memory of the CPU, and the run is on {device}"
        raise UsageError(f'parallel.offload is "disk": {text}: take "cpu"')


# ---- Weights and moments in mapped files


def map_parameters(model: nn.Module, config: Offload) -> None:
    """Give every parameter memory in a file, if asked for; values are lost."""
    if not (isinstance(config, DiskOffload) and config.parameters):
        return
    for parameter in model.parameters():
        if parameter.nbytes >= SMALLEST:
            parameter.data = mapped_like(parameter.data, config.folder)


def map_state(optimizer: Optimizer, config: Offload) -> None:
    """Give the optimizer's state memory in files, if asked for, with its values."""
    if not (isinstance(config, DiskOffload) and config.optimizer):
        return
    for _, update in optimizer.updates:
        for tensors in update.state.values():
            for name, tensor in tensors.items():
                if tensor.nbytes >= SMALLEST:
                    tensors[name] = mapped_like(tensor, config.folder).copy_(tensor)


def mapped_like(tensor: Tensor, folder: str) -> Tensor:
    """Zeros of the same shape and dtype in a file that has no name and goes with the tensor. Raises StorageError."""
    with _errors(folder), tempfile.NamedTemporaryFile(dir=folder or None, prefix=".hornbook-") as file:
        if hasattr(os, "posix_fallocate"):  # a full disk shows here, and not as a fault in a kernel
            os.posix_fallocate(file.fileno(), 0, tensor.nbytes)
        flat = torch.from_file(file.name, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    return flat.view(tensor.shape)


@contextmanager
def _errors(folder: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        text = f"{folder or tempfile.gettempdir()}: {error.strerror or error}"
        raise StorageError(f"{text}: --parallel.offload.folder names another folder") from error


# ---- What backward needs


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class _OnDisk:
    """A tensor whose memory is in the file."""

    start: int
    size: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _OnHost(NamedTuple):
    """A tensor in page-locked memory."""

    copy: Tensor
    device: torch.device


class DiskTensors:
    """A file that tensors kept for backward are written to; once backward has let go of all, it starts over."""

    def __init__(self, folder: str) -> None:
        with _errors(folder):
            self._file = tempfile.TemporaryFile(dir=folder or None, buffering=0)  # noqa: SIM115 - closed with this object
        weakref.finalize(self, self._file.close)
        self._folder, self._end = folder, 0
        self._kept = weakref.WeakSet[_OnDisk]()
        self._written: dict[tuple[int, int], tuple[StorageWeakRef, int]] = {}
        """By identity of the memory and version of its values; the reference keeps the identity from being reused."""

    def begin(self) -> Hooks:
        """The hooks of one forward pass and its backward."""
        self._written.clear()  # memory that is free by now may be that of other tensors
        if not self._kept:
            self._end = 0
        return self.pack, self.unpack

    def pack(self, tensor: Tensor) -> Any:
        """Write a tensor's memory, once for all tensors that share it."""
        storage = tensor.untyped_storage()
        if isinstance(tensor, nn.Parameter) or storage.nbytes() < SMALLEST or tensor.device.type != "cpu":
            return tensor
        reference = StorageWeakRef(storage)
        key = reference.cdata, tensor._version
        known = self._written.get(key)
        if known is None:
            known = self._written[key] = reference, self._end
            with _errors(self._folder):
                self._write(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
        place = known[1], storage.nbytes(), tensor.dtype
        kept = _OnDisk(*place, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))
        self._kept.add(kept)
        return kept

    def _write(self, data: np.ndarray) -> None:
        rest = data.data
        while rest:
            written = os.pwrite(self._file.fileno(), rest, self._end)
            self._end, rest = self._end + written, rest[written:]

    def unpack(self, kept: Any) -> Tensor:
        """The tensor again, in new memory."""
        if not isinstance(kept, _OnDisk):
            return kept
        data = torch.empty(kept.size, dtype=torch.uint8)
        rest, start = data.numpy().data, kept.start
        with _errors(self._folder):
            while rest:
                self._file.seek(start)
                read = self._file.readinto(rest)
                if not read:
                    raise OSError(f"the file of saved tensors ends at byte {start}")
                start, rest = start + read, rest[read:]
        found = torch.empty(0, dtype=kept.dtype)
        return found.set_(data.untyped_storage(), kept.offset, kept.shape, kept.stride)


def host_hooks() -> Hooks:
    """Copies in page-locked memory of the host. Copies follow the stream that computes, so none waits for the host."""

    def pack(tensor: Tensor) -> Any:
        if isinstance(tensor, nn.Parameter) or tensor.nbytes < SMALLEST or tensor.device.type != "cuda":
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return _OnHost(copy.copy_(tensor, non_blocking=True), tensor.device)

    def unpack(kept: Any) -> Tensor:
        return kept.copy.to(kept.device, non_blocking=True) if isinstance(kept, _OnHost) else kept

    return pack, unpack


def offload_activations(model: Transformer, config: Offload) -> None:
    """Let the blocks of a model keep elsewhere what backward needs; what is made again is not kept at all."""
    if not moves_activations(config):
        return
    for stack in model.stacks():
        begin = DiskTensors(config.folder).begin if isinstance(config, DiskOffload) else host_hooks
        stack.saving = partial(_hooked, begin, rebuild=stack.saving is Rebuilding)


def moves_activations(config: Offload) -> bool:
    """Whether what blocks keep for backward is held elsewhere."""
    return config.activations if isinstance(config, DiskOffload) else config.kind == "cpu"


def _hooked(begin: Callable[[], Hooks], *, rebuild: bool) -> AbstractContextManager[object]:
    hooks = begin()
    return Rebuilding(hooks) if rebuild else torch.autograd.graph.saved_tensors_hooks(*hooks)
