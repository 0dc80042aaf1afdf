"""Memory of this process in bytes: how much it holds, its peak, and how much it may hold."""

import contextlib
import resource
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from hornbook.progress import size_text

_PEAK_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes of a unit of `ru_maxrss`."""
_CGROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""Controller, as /proc/self/cgroup names it (v2, v1) -> files of limit and use, and the key of `memory.stat`."""


@dataclass(frozen=True)
class Memory:
    """Bytes."""

    used: int
    peak: int
    total: int
    """Of the device or container, whichever process holds them."""
    of: str = "memory"

    def __str__(self) -> str:
        used, peak, total = (size_text(size) for size in (self.used, self.peak, self.total))
        return f"{self.of} {used} of {total}, peak {peak}"


def memory_of(device: torch.device) -> Memory:
    """The memory that this process holds: on a GPU what torch reserved there, else resident memory."""
    if device.type == "cuda":
        used, peak = torch.cuda.memory_reserved(device), torch.cuda.max_memory_reserved(device)
        return Memory(used, peak, torch.cuda.get_device_properties(device).total_memory, "GPU memory")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _PEAK_UNIT
    used = psutil.Process().memory_info().rss
    total = min([psutil.virtual_memory().total, *(limit for limit, _ in container_limits())])
    return Memory(used, max(used, peak), total)


def free_memory(device: torch.device) -> int:
    """Bytes that this process may hold on the device, on a CPU including those that it holds already."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_bytes() + psutil.Process().memory_info().rss


def held_by_others(device: torch.device) -> str:
    """A line about memory of a GPU that other processes have, where they have a quarter of it or more; else ""."""
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    others = total - free - torch.cuda.memory_reserved(device)
    if others < total / 4:
        return ""
    return (
        f"other processes have {size_text(others)} of the {size_text(total)} of {device}: `nvidia-smi` names them; end "
        "them, or take another GPU (CUDA_VISIBLE_DEVICES)"
    )


def available_bytes() -> int:
    """Bytes of the machine's memory, or of the container's, that nobody holds."""
    free = [psutil.virtual_memory().available, *(limit - used for limit, used in container_limits())]
    return max(min(free), 0)


def container_limits(
    root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> Iterator[tuple[int, int]]:
    """(limit, bytes in use) of each control group around this process that limits its memory; none outside Linux.

    root: where control groups are mounted; own: the file that lists the groups of this process. Files that the system
    can drop from its cache are not counted as in use.
    """
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controller, path = line.split(":", 2)
            group = root / controller / path.lstrip("/")
            while controller in _CGROUP_FILES and group.is_relative_to(root / controller):
                with contextlib.suppress(OSError, ValueError):  # no such file here, or `max`: no limit
                    yield _limit_of(group, *_CGROUP_FILES[controller])
                group = group.parent


def _limit_of(group: Path, limit: str, usage: str, cache: str) -> tuple[int, int]:
    """(limit, bytes in use) of a control group; ValueError where it has no limit, OSError where it has no files."""
    stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    used = int((group / usage).read_text()) - int(stat.get(cache, 0))
    return int((group / limit).read_text()), used
