"""From host memory to a device without a wait: through pinned memory, in the order of the device's work."""

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
