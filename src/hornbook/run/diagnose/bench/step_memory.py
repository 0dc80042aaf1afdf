"""Peak memory of a step by category: parameters, gradients, optimizer state, activations, and the rest.

The first three are the bytes of the tensors that a rank holds. Activations are what autograd keeps of one microbatch
between its forward and its backward pass: each storage once, without parameters. The rest is what is left of the peak:
buffers of the passes, batches, libraries and, on a CPU, what the process held before the model was built.
"""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor

from hornbook.run.checkpoints.state import State
from hornbook.run.machine.process_memory import memory_of


class MemoryMeter:
    """Made before the model, so that it knows what the process held without it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = psutil.Process().memory_info().rss if device.type == "cpu" else 0
        self._lowered = False

    def start(self) -> None:
        """Forget the peak so far, where the system can."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            self._lowered = True

    def stop(self, state: State, forward_backward: Callable[[], None]) -> dict[str, Any]:
        """Bytes by category. The peak is read first; then `forward_backward` runs once to count activations."""
        peak = self._peak()
        found = {
            "parameters": _bytes(shard.tensor for shard in state.engine.shards.values()),
            "gradients": _bytes(shard.tensor.grad for shard in state.engine.shards.values()),
            "optimizer": _bytes(tensor for _, _, tensor in state.optimizer.state()),
            "activations": saved_bytes(state, forward_backward),
        }
        rest = max(peak - sum(found.values()) - self._before, 0)
        return {"peak": peak, **found, "rest": rest, "before": self._before, "device": str(self._device)}

    def _peak(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if self._lowered:
            with contextlib.suppress(OSError, ValueError, IndexError):
                lines = Path("/proc/self/status").read_text().splitlines()
                return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
        return memory_of(self._device).peak


def saved_bytes(state: State, forward_backward: Callable[[], None]) -> int:
    """Bytes that autograd saves in a microbatch: each storage once, without parameters."""
    known = {shard.tensor.untyped_storage().data_ptr() for shard in state.engine.shards.values()}
    storages: dict[int, int] = {}
    kept: list[Tensor] = []
    """Storages are told apart by their address, so none may be freed and used again meanwhile."""

    def pack(tensor: Tensor) -> Tensor:
        whole = tensor if tensor._base is None else tensor._base
        storage = tensor.untyped_storage()
        if whole.is_leaf and whole.requires_grad:
            return tensor  # a parameter, perhaps gathered from its shards
        if storage.data_ptr() not in known and storage.data_ptr() not in storages:
            storages[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor.detach())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward_backward()
    return sum(storages.values())


def _bytes(tensors: Any) -> int:
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)
