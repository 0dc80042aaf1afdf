"""The device that a rank computes on."""

import os

import torch

from hornbook.errors import UsageError


def choose_device(
    name: str, local_rank: int = 0, same_devices: bool = False, *, option: str = "train.device"
) -> torch.device:
    """The device `name`, given by `option`, of a rank; `auto` takes CUDA, else MPS, else the CPU.

    Of several CUDA devices a rank takes the one of its number, unless the name gives one. Where a rank sees one device
    alone, a launcher may have shown it one of several, unless all ranks see the same (`same_devices`). UsageError
    where there is no such device, or where two ranks would share one.
    """
    # Through NVML: a process that has initialised CUDA cannot fork ranks that use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    kind, _, index = name.partition(":")
    if kind not in available:
        raise UsageError(f"{option} is {name!r}: write auto, cpu, cuda, cuda:N or mps")
    if not available[kind]:
        raise UsageError(f"{option} is {name!r}, but this torch sees no {kind} device: use --{option} cpu")
    if kind != "cuda":
        return torch.device(name)
    count = torch.cuda.device_count()
    if local_rank and (index or (local_rank >= count and (count > 1 or same_devices))):
        there = f"train.device {name}" if index else f"{count} on this machine"
        raise UsageError(
            f"rank {local_rank} of this machine would share a GPU with another ({there}): lower --parallel.data to the "
            "number of GPUs, or use --train.device cpu"
        )
    return torch.device(name) if index else torch.device("cuda", local_rank if count > 1 else 0)
