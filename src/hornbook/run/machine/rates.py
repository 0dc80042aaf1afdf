"""Measures a machine: matrix products by dtype, memory bandwidth, the disk; between ranks, collectives."""

import contextlib
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hornbook.files.durable import TEMPORARY, storage_errors, write_file
from hornbook.model.layers.products import is_widened
from hornbook.parallel.world import DATA, World
from hornbook.run.machine.checks import DISK_BYTES, disk_rate, drop_cached, matmul_rate, timed
from hornbook.run.machine.saved import device_name

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SIDES = {"cpu": (1024, 2048), "cuda": (4096, 8192)}
"""Sides of the square products; the fastest counts."""
COPY_BYTES = 256 << 20
COPIES = 5
REDUCE_BYTES = (4, 1 << 20, 64 << 20)
"""Sizes of the all-reduces."""
REDUCES = 5


def measure_machine(device: torch.device, folder: Path) -> dict[str, Any]:
    """What does not depend on a recipe. `products` in GFLOP/s, `widened` the dtypes whose products run in fp32.

    folder: on the disk to measure. Raises StorageError where it cannot be written.
    """
    widened = [name for name, dtype in DTYPES.items() if is_widened(torch.empty(0, dtype=dtype, device=device))]
    sides = SIDES.get(device.type, SIDES["cpu"])
    native = {name: dtype for name, dtype in DTYPES.items() if name not in widened and _multiplies(device, dtype)}
    return {
        "device": device_name(device),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "time": time.time(),
        "products": {name: max(matmul_rate(device, dtype, side) for side in sides) for name, dtype in native.items()},
        "widened": widened,
        "memory_bandwidth": copy_rate(device),
        "disk": measure_disk(folder),
    }


def _multiplies(device: torch.device, dtype: torch.dtype) -> bool:
    try:
        torch.mm(*[torch.ones(8, 8, device=device, dtype=dtype)] * 2)
    except RuntimeError:
        return False
    return True


def copy_rate(device: torch.device) -> float:
    """GB/s of a copy of 256 MiB, bytes read and written; the median of five."""
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def copy() -> None:
        target.copy_(source)
        wait()

    copy()
    return 2 * COPY_BYTES / statistics.median(timed(copy) for _ in range(COPIES)) / 1e9


def measure_disk(folder: Path) -> dict[str, float]:
    """MB/s of writing (synced) and of reading 64 MiB, and the milliseconds of an fsync. Raises StorageError."""
    with storage_errors(folder):
        written, fsync = disk_rate(folder)
        return {"write": written, "read": _read_rate(folder), "fsync_ms": fsync}


def _read_rate(folder: Path) -> float:
    """MB/s of reading what was written, once the system has been asked to forget it."""
    probe = folder / f"{TEMPORARY}bench-{os.getpid()}"
    try:
        write_file(probe, os.urandom(1 << 20) * (DISK_BYTES >> 20))
        file = os.open(probe, os.O_RDONLY)
        try:
            drop_cached(file)

            def read() -> None:
                while os.read(file, 1 << 20):
                    pass

            return DISK_BYTES / 1e6 / timed(read)
        finally:
            os.close(file)
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def measure_collectives(world: World) -> list[dict[str, Any]]:
    """All-reduces over the data ranks: bytes, median seconds, MB/s of the bus (2 (p - 1) / p of the bytes per rank)."""
    if world.data_size == 1:
        return []
    found, factor = [], 2 * (world.data_size - 1) / world.data_size
    for size in REDUCE_BYTES:
        tensor = torch.zeros(max(size // 4, 1), device=world.device)
        seconds = statistics.median(_together(world, lambda each=tensor: _reduce(world, each)) for _ in range(REDUCES))
        found.append({"bytes": size, "seconds": seconds, "bus_rate": factor * size / seconds / 1e6})
    return found


def _reduce(world: World, tensor: torch.Tensor) -> None:
    dist.all_reduce(tensor, group=world.group(DATA))
    if tensor.is_cuda:
        torch.cuda.synchronize()


def _together(world: World, act: Callable[[], None]) -> float:
    world.barrier()
    return timed(act)
