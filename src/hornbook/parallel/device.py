"""The device that a rank computes on."""

import os
import re
import warnings
from pathlib import Path

import torch

from hornbook.errors import DoesNotFitError, HornbookError, UsageError
from hornbook.kernels.device_errors import USE_CPU, device_error

DEVICE_FILES = Path("/dev")
"""Has a file `nvidiaN` for each GPU that this machine, or this container, may use."""
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_NONE = ("", "-1", "NoDevFiles")
"""Values of it that hide all GPUs; the last is Slurm's."""


def choose_device(
    name: str, local_rank: int = 0, same_devices: bool = False, *, option: str = "train.device"
) -> torch.device:
    """The device `name`, given by `option`, of a rank; `auto` takes CUDA, else MPS, else the CPU.

    Of several CUDA devices a rank takes the one of its number, unless the name gives one. Where a rank sees one device
    alone, a launcher may have shown it one of several, unless all ranks see the same (`same_devices`). UsageError
    where there is no such device, where two ranks would share one, and for `auto` where CUDA_VISIBLE_DEVICES names
    GPUs that are not there.
    """
    # Through NVML: a process that has initialised CUDA cannot fork ranks that use it.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        if not available["cuda"] and torch.version.cuda and visible_gpus() and (unseen := unseen_gpus()):
            raise UsageError(f"{option} is 'auto', and {unseen}; or use --{option} cpu")
        name = next(kind for kind, there in available.items() if there)
    kind, _, index = name.partition(":")
    if kind not in available:
        raise UsageError(f"{option} is {name!r}: write auto, cpu, cuda, cuda:N or mps")
    if not available[kind]:
        unseen = unseen_gpus() if kind == "cuda" else ""
        raise UsageError(
            f"{option} is {name!r}, but {unseen or f'this torch sees no {kind} device'}: use --{option} cpu"
        )
    return _cuda_device(name, index, local_rank, same_devices, option) if kind == "cuda" else torch.device(name)


def _cuda_device(name: str, index: str, local_rank: int, same_devices: bool, option: str) -> torch.device:
    count, shown = torch.cuda.device_count(), os.environ.get(_VISIBLE)
    seen = f"{count} on this machine" if shown is None else f"{count} by {_VISIBLE}={shown}"
    if index and not (index.isdecimal() and int(index) < count):
        last = f"cuda:0 to cuda:{count - 1}" if count > 1 else "cuda:0"
        raise UsageError(f"{option} is {name!r}, and there is no such GPU ({seen}): write {last}, or auto")
    if local_rank and (index or (local_rank >= count and (count > 1 or same_devices))):
        raise UsageError(
            f"rank {local_rank} of this machine would share a GPU with another "
            f"({f'train.device {name}' if index else seen}): lower --parallel.data to the number of GPUs, or use "
            "--train.device cpu"
        )
    return torch.device(name) if index else torch.device("cuda", local_rank if count > 1 else 0)


def visible_gpus() -> list[str] | None:
    """The GPUs that CUDA_VISIBLE_DEVICES names; None where it is not set, and all are visible."""
    shown = os.environ.get(_VISIBLE)
    return None if shown is None else [each for each in map(str.strip, shown.split(",")) if each not in _NONE]


def unseen_gpus() -> str:
    """Why torch sees no GPU of this machine, and what helps; "" where the machine has no NVIDIA GPU."""
    num_gpus, shown = len(list(DEVICE_FILES.glob("nvidia[0-9]*"))), os.environ.get(_VISIBLE)
    if not num_gpus:
        return ""
    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} is a build without CUDA, on a machine with an NVIDIA GPU: install a CUDA build "
            "(pytorch.org shows the command)"
        )
    if shown is not None:
        return (
            f"{_VISIBLE} is {shown!r}, and this machine has GPUs 0 to {num_gpus - 1}: name one of them, each once, or "
            f"unset {_VISIBLE}"
        )
    return f"the NVIDIA driver does not answer to torch {torch.__version__}: see what `nvidia-smi` says, and update it"


def check_device(device: torch.device) -> None:
    """Raise a HornbookError where torch cannot compute on a GPU: its driver, its generation, or who else has it.

    Initialises CUDA, which a process that will fork ranks must not.
    """
    if device.type != "cuda":
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns in many lines of a GPU that it has no kernels for
            major, minor = torch.cuda.get_device_capability(device)
            torch.cuda.mem_get_info(device)  # the first call that needs the GPU itself
    except RuntimeError as error:
        known = device_error(error)
        if isinstance(known, DoesNotFitError):
            text = (
                f"other processes have all memory of {device}: `nvidia-smi` names them; end them, or take another GPU"
            )
            known = DoesNotFitError(f"{text} ({_VISIBLE})")
        raise known or error from error
    kernels = torch.cuda.get_arch_list()
    if torch.version.hip is None and kernels and not any(_runs_on(each, major, minor) for each in kernels):
        raise UsageError(
            f"{torch.cuda.get_device_name(device)} ({device}) has compute capability {major}.{minor}, and torch "
            f"{torch.__version__} has kernels for {', '.join(kernels)} only: install a build that has them "
            f"(pytorch.org; older GPUs need an older CUDA), {USE_CPU}"
        )


def _runs_on(kernel: str, major: int, minor: int) -> bool:
    """Whether a GPU of this compute capability runs `sm_90a` (its generation) or `compute_90` (later ones too)."""
    version = int(re.sub(r"\D", "", kernel) or 0)
    if kernel.startswith("compute_"):
        return version <= 10 * major + minor
    return version // 10 == major and version % 10 <= minor


def device_problem(device: torch.device) -> HornbookError | None:
    """The error of `check_device`; None where torch can compute on the device."""
    try:
        check_device(device)
    except HornbookError as error:
        return error
    return None


def gpu_identity(device: torch.device) -> str:
    """A name of the GPU that no other in the world has; "" for another kind of device. Initialises CUDA."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
