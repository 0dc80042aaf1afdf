"""What a run holds outside the memory of its device (`parallel.offload`): what backward needs, moments, weights.

On disk, moments and weights are shared mappings of files: updates work on them in place, and the system writes pages
out and reads them back as memory asks for it. Tensors kept for backward are written to a file as a forward pass makes
them and read back in backward. All files are nameless from the start, so nothing is left behind by any end of the
process. On a GPU memory of the host takes the place of files for what backward needs, and the optimizer works there
(`hornbook.parallel.offload.host`), with its state in memory or in files; where ranks share the weights, torch's FSDP
can hold those and their gradients on the host. Copies keep every bit.
"""

import os
import tempfile
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from hornbook.errors import StorageError, UsageError
from hornbook.kernels.torch_versions import allocate
from hornbook.model.layers.saved_tensors import Hooks, Rebuilding
from hornbook.model.transformer import Transformer
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.optimizer import Optimizer
from hornbook.parallel.config import DiskOffload, HostOffload, Offload
from hornbook.parallel.offload.host import CopyStream, HostTensors, HostUpdate
from hornbook.parallel.owners import Owners
from hornbook.parallel.world import World

SMALLEST = 2**16
"""Bytes below which a tensor stays where it is."""


def check_offload(config: Offload, device: torch.device, optim: OptimizerConfig | None = None) -> None:
    """Raise UsageError where a device cannot do what is asked for, or not with an optimizer."""
    if config.kind == "cpu" and not is_gpu(device):
        text = f"on the device {device} all is in its memory already"
        raise UsageError(f'parallel.offload is "cpu": {text}: take "disk", or parallel.recompute')
    more = isinstance(config, DiskOffload) and (config.activations or config.parameters or not is_gpu(device))
    if more and device.type != "cpu":
        text = f"of a run on {device} files hold the state of the optimizer alone"
        remedy = 'take "cpu", or set parallel.offload.activations and parallel.offload.parameters to false'
        raise UsageError(f'parallel.offload is "disk": {text}: {remedy}')
    if optim is not None and _updates_on_host(config, device) and not config.parameters:
        rules = [optim, *(group.rule for group in optim.groups if group.rule is not None)]
        if any(rule.averages for rule in rules):  # what is saved as the model and what goes on are two sets of weights
            text = "evaluates other weights than it trains, and these stay on the device: set it to false"
            raise UsageError(f"parallel.offload.optimizer: {type(optim).__name__} {text}, or take another optimizer")


def is_gpu(device: torch.device) -> bool:
    """Whether the device has memory beside that of the host."""
    return device.type == "cuda"


def _updates_on_host(config: Offload, device: torch.device) -> TypeGuard[HostOffload | DiskOffload]:
    return config.kind != "none" and is_gpu(device) and config.optimizer


def holds_weights(config: Offload, world: World) -> bool:
    """Whether a rank's share of weights and gradients is on the host, as `parallel.shard` says it may be."""
    return isinstance(config, HostOffload) and config.parameters and world.size > 1


def hosted(owners: Owners, optim: OptimizerConfig, config: Offload, world: World) -> Owners | HostUpdate:
    """What an optimizer updates: parameters where they are, or their twins on the host. Raises UsageError."""
    check_offload(config, world.device, optim)
    owners.on_host = holds_weights(config, world)
    return HostUpdate(owners, world.device) if _updates_on_host(config, world.device) and not owners.on_host else owners


# ---- Weights and moments on the host, and in mapped files


def give_memory(model: nn.Module, config: Offload, world: World) -> None:
    """Move a model to this rank's device, or weights that the host holds to the host; those on meta get no values."""
    home = torch.device("cpu") if holds_weights(config, world) else world.device
    if any(parameter.is_meta for parameter in model.parameters()):
        allocate(model, home)
    else:
        model.to(home)
    for module in model.modules() if home != world.device else ():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = buffer.to(world.device)
    _map_parameters(model, config)


def _map_parameters(model: nn.Module, config: Offload) -> None:
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


def offload_activations(model: Transformer, config: Offload, device: torch.device) -> None:
    """Let the blocks of a model keep elsewhere what backward needs; what is made again is not kept at all."""
    if not moves_activations(config):
        return
    copies = CopyStream(device) if device.type == "cuda" else None
    for stack in model.stacks():
        if isinstance(config, DiskOffload):
            begin = DiskTensors(config.folder).begin
        elif copies is not None:
            begin = partial(_host_hooks, copies, device)
        else:
            continue
        stack.saving = partial(_hooked, begin, rebuild=stack.saving is Rebuilding)


def _host_hooks(copies: CopyStream, device: torch.device) -> Hooks:
    return HostTensors(copies, device, SMALLEST).hooks()


def moves_activations(config: Offload) -> bool:
    """Whether what blocks keep for backward is held elsewhere."""
    return getattr(config, "activations", False)


def _hooked(begin: Callable[[], Hooks], *, rebuild: bool) -> AbstractContextManager[object]:
    hooks = begin()
    return Rebuilding(hooks) if rebuild else torch.autograd.graph.saved_tensors_hooks(*hooks)
