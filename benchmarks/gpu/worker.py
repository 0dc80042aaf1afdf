"""What the processes of the parts share: the device, its clock and its memory."""

import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.output import Output, arguments

PEAKS = {"H200": 989.5e12, "H100": 989.5e12, "A100": 312e12}
"""Dense bf16 FLOP/s by the maker's data sheets."""


def begin() -> tuple[Output, dict[str, Any], torch.device]:
    """Output, specification and device of this process."""
    output, spec = arguments()
    return output, spec, torch.device("cpu" if spec["dry_run"] else "cuda")


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(call: Callable[[], object], device: torch.device, times: int) -> float:
    """Mean time of a call, of several in a row."""
    wait(device)
    begun = time.perf_counter()
    for _ in range(times):
        call()
    wait(device)
    return (time.perf_counter() - begun) / times


def peak_bytes(device: torch.device) -> int:
    """Most memory allocated since `reset_peak`; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


def reset_peak(device: torch.device) -> None:
    """Begin to measure the peak."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_flops(device: torch.device) -> float | None:
    """FLOP/s of bf16 products by the data sheet; None where it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((value for key, value in PEAKS.items() if key in name), None)
