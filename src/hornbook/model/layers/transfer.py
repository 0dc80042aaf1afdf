"""Between host and device: copies without a wait through pinned memory, and the one that a step waits for."""

import torch
from torch import Tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """The same values on the device. The host goes on at once, and may drop `tensor`."""
    return pinned(tensor, device).to(device, non_blocking=True)


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """Host memory that the device can read by itself. A copy from any other makes the host wait."""
    if device.type != "cuda" or tensor.device.type != "cpu" or tensor.is_pinned():
        return tensor
    return tensor.pin_memory()


def fetch(*scalars: Tensor) -> list[float]:
    """The values of scalars on the device, in one transfer, which waits for the device: a step has one."""
    return torch.stack([scalar.float() for scalar in scalars]).tolist()
