"""Memory of this process: how much it holds now, the most it held, and how much there is."""

import resource
import sys
from dataclasses import dataclass

import psutil
import torch

from hornbook.progress import size_text

_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of a unit of `ru_maxrss`."""


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    used: int
    peak: int
    total: int
    """Of the device, whoever holds them."""
    of: str = "memory"

    def __str__(self) -> str:
        used, peak, total = (size_text(size) for size in (self.used, self.peak, self.total))
        return f"{self.of} {used} of {total}, peak {peak}"


def memory_of(device: torch.device) -> Memory:
    """What this process holds on a device: of a GPU what torch reserved there, else resident memory."""
    if device.type == "cuda":
        used, peak = torch.cuda.memory_reserved(device), torch.cuda.max_memory_reserved(device)
        return Memory(used, peak, torch.cuda.get_device_properties(device).total_memory, "GPU memory")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT
    used = psutil.Process().memory_info().rss
    return Memory(used, max(used, peak), psutil.virtual_memory().total)
