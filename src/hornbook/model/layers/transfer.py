"""Between host and device: copies without a wait through pinned memory, and the one that a step waits for."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The same values on the device. The host goes on at once, and may drop `tensor`."""
    return pinned(tensor, device).to(device, non_blocking=True)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Host memory that the device can read by itself. A copy from any other makes the host wait."""
    if device.type != "cuda" or tensor.device.type != "cpu" or tensor.is_pinned():
        return tensor
    return tensor.contiguous().pin_memory()  # pinning keeps gaps, and a copy of a tensor with gaps waits


def start_fetch(tensors: Sequence[Tensor]) -> Callable[[], list[Tensor]]:
    """Begin to copy tensors to the host; the returned call waits for these copies alone and returns them.

    Work that is given to the device in between runs while the host waits.
    """
    if not any(tensor.device.type == "cuda" for tensor in tensors):
        return lambda: [tensor.cpu() for tensor in tensors]
    copies = [torch.empty(each.shape, dtype=each.dtype, pin_memory=True) for each in tensors]
    for copy, tensor in zip(copies, tensors, strict=True):
        copy.copy_(tensor, non_blocking=True)
    done = torch.cuda.Event()
    done.record()

    def finish() -> list[Tensor]:
        done.synchronize()
        return copies

    return finish


def fetch(*scalars: Tensor) -> list[float]:
    """The values of scalars on the device, in one transfer, which waits for the device: a step has one."""
    return torch.stack([scalar.float() for scalar in scalars]).tolist()
