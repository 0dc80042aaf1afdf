"""Page-locked memory of the host beside a GPU: what backward needs, and the optimizer with its state.

The GPU copies on a stream of its own while it computes. The host waits for no activation, and once a step for the
gradients, where it is the host that updates.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from hornbook.model.layers.saved_tensors import Hooks
from hornbook.optim.config.rule import Shape
from hornbook.parallel.config import BETWEEN
from hornbook.parallel.owners import Owners


def like_on_host(tensor: Tensor) -> Tensor:
    """Memory of the host for a tensor, with its strides; page-locked where the tensor is on a GPU."""
    return torch.empty_like(tensor, device="cpu", requires_grad=False, pin_memory=tensor.device.type == "cuda")


class Copies(Protocol):
    """Copies that run beside computing."""

    def start(self, target: Tensor, source: Tensor) -> Any:
        """Copy once what is queued now has been computed; returns a ticket for `wait`."""

    def wait(self, ticket: Any) -> None:
        """Let what is computed from here on come after a copy."""


class CopyStream:
    """Copies on a stream of their own; the host waits for none."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device)

    def start(self, target: Tensor, source: Tensor) -> torch.cuda.Event:
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        if target.is_cuda:  # it may be dropped before anything waits for the copy: where backward is cut off
            target.record_stream(self._stream)
        done = torch.cuda.Event()
        done.record(self._stream)
        return done

    def wait(self, ticket: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._stream.device).wait_event(ticket)


# ---- What backward needs


class _OnHost:
    """A tensor whose values are on the host; on its way down and up it is on the device too."""

    __slots__ = ("before", "copy", "device", "on_device", "ticket", "used")

    def __init__(self, tensor: Tensor, copies: Copies, before: "_OnHost | None") -> None:
        self.copy, self.device, self.before = like_on_host(tensor), tensor.device, before
        self.on_device: Tensor | None = tensor
        self.used = False
        self.ticket = copies.start(self.copy, tensor)

    def is_of(self, tensor: Tensor) -> bool:
        """Whether it holds the values of a tensor, which is still on its way."""
        mine = self.on_device
        return mine is not None and all(
            get(mine) == get(tensor)
            for get in (Tensor.data_ptr, Tensor.stride, _version, lambda each: (each.shape, each.dtype))
        )

    def fetch(self, copies: Copies) -> None:
        """Start the way up, if it is not there. The stream that computes gives the memory and takes it back."""
        if self.on_device is None:
            self.on_device = torch.empty_like(self.copy, device=self.device)
            self.ticket = copies.start(self.on_device, self.copy)


def _version(tensor: Tensor) -> int:
    return tensor._version


class HostTensors:
    """What one forward pass keeps for backward: copied down as it is made, and up before backward comes to it.

    A tensor on its way down keeps its memory until the copy is done, for which later computing waits, not the host: so
    no more than `BETWEEN` bytes are there twice. Backward takes tensors
    last to first: with each it starts the copies of those before it. What has not left yet is not copied back.
    """

    def __init__(self, copies: Copies, device: torch.device, smallest: int = 2**16) -> None:
        """Tensors of `device` with at least `smallest` bytes are moved."""
        self._copies, self._device, self._smallest = copies, device.type, smallest
        self._last: _OnHost | None = None
        self._leaving = deque[_OnHost]()

    def pack(self, tensor: Tensor) -> Any:
        """Start a tensor's way down; one that is kept twice goes once."""
        if isinstance(tensor, nn.Parameter) or tensor.nbytes < self._smallest or tensor.device.type != self._device:
            return tensor
        for kept in self._leaving:
            if kept.is_of(tensor):
                return kept
        self._last = _OnHost(tensor.detach(), self._copies, self._last)
        self._leaving.append(self._last)
        while sum(each.copy.nbytes for each in self._leaving) > BETWEEN:
            left = self._leaving.popleft()
            self._copies.wait(left.ticket)
            left.on_device = None
        return self._last

    def unpack(self, kept: Any) -> Tensor:
        """The tensor on its device again."""
        if not isinstance(kept, _OnHost):
            return kept
        self._leaving.clear()
        kept.fetch(self._copies)
        self._copies.wait(kept.ticket)
        found, kept.on_device, kept.used = kept.on_device, None, True
        each, ahead = kept.before, 0
        while each is not None and (each.used or ahead + each.copy.nbytes <= BETWEEN):
            if not each.used:
                each.fetch(self._copies)
                ahead += each.copy.nbytes
            each = each.before
        assert found is not None
        return found

    def hooks(self) -> Hooks:
        """For `torch.autograd.graph.saved_tensors_hooks`."""
        return self.pack, self.unpack


# ---- The optimizer


class _Twin:
    """A parameter on the device, and its twin on the host, which the optimizer updates."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.host = nn.Parameter(like_on_host(parameter.detach()), requires_grad=parameter.requires_grad)
        self._gradient: Tensor | None = None
        self._version = -1
        """Of the parameter when both were equal."""

    def down(self) -> None:
        """Queue the copy of the gradient, and of the values where others have changed them."""
        if self.parameter._version != self._version:
            self.host.detach().copy_(self.parameter.detach(), non_blocking=True)
        gradient = self.parameter.grad
        if gradient is None:
            self.host.grad = None
            return
        if self._gradient is None:
            self._gradient = like_on_host(gradient)
        self.host.grad = self._gradient.copy_(gradient, non_blocking=True)

    def up(self) -> None:
        """Queue the copy of the new values; the next forward pass comes after it."""
        self.parameter.detach().copy_(self.host.detach(), non_blocking=True)
        self._version = self.parameter._version


class HostUpdate:
    """Parameters as an optimizer on the host sees them (`optim.optimizer.WholeParameters`), around those of `Owners`.

    Gradients are clipped on the device, then copied down all at once; the update runs on the host's cores, on states
    that never leave it; new weights are copied up. Its bits are those of an update on a CPU.
    """

    on_host = True

    def __init__(self, owners: Owners, device: torch.device) -> None:
        self._owners, self._device = owners, device
        self._twins: list[_Twin] = []

    def take(self, names: Iterable[str]) -> dict[str, nn.Parameter]:
        """The twins of what `Owners.take` gives."""
        twins = {name: _Twin(parameter) for name, parameter in self._owners.take(names).items()}
        self._twins = list(twins.values())
        return {name: twin.host for name, twin in twins.items()}

    def starts(self) -> dict[str, Shape]:
        """First index of each tensor of `take` in its whole parameter."""
        return self._owners.starts()

    def gather(self) -> None:
        """Bring gradients, and values that have changed; the host waits for them."""
        self._owners.gather()
        for twin in self._twins:
            twin.down()
        if self._device.type == "cuda":
            torch.cuda.current_stream(self._device).synchronize()

    def scatter(self) -> None:
        """Bring the new values back."""
        for twin in self._twins:
            twin.up()
        self._owners.scatter()
