"""The errors of devices, their drivers and shared memory, recognised by the texts of torch, CUDA, Triton and NCCL.

torch has few classes for them (OutOfMemoryError, AcceleratorError, DistBackendError, most often a bare RuntimeError),
and compiled code wraps them in others: only the text tells. This table is the one place that knows the texts.
"""

import re

from hornbook.errors import DoesNotFitError, HornbookError, LostDeviceError, SharedMemoryError, UsageError

USE_CPU = "or use the CPU (--train.device cpu)"


_FAULTS: tuple[tuple[str, type[HornbookError], str], ...] = (
    (
        r"(creating|extend)\b.*/dev/shm/|unable to (write to file|allocate shared memory).*</torch_"
        r"|workers are out of shared memory|No space left on device.*/dev/shm",
        SharedMemoryError,
        "shared memory (/dev/shm) is full: {line}. Delete what dead processes left in /dev/shm, or give the container "
        "more (docker run --shm-size 8g)",
    ),
    (
        r"(?i)out of memory|can't allocate memory|(CUBLAS|CUDNN)_STATUS_ALLOC_FAILED",
        DoesNotFitError,
        "out of memory: {line}",
    ),
    (
        r"Duplicate GPU detected",
        UsageError,
        "two ranks were given one GPU: {line}. Start at most one rank for each GPU (torchrun --nproc-per-node, srun "
        "--gpus-per-task 1), and leave the number out of train.device",
    ),
    (
        r"driver on your system is too old|unsupported display driver|forward compatibility was attempted"
        r"|driver version is insufficient",
        UsageError,
        "the NVIDIA driver is too old for this torch: {line}. Update the driver (`nvidia-smi` shows the newest CUDA "
        f"that it supports), install a torch for that CUDA (pytorch.org), {USE_CPU}",
    ),
    (
        r"no kernel image is available|device kernel image is invalid|invalid device function"
        r"|too old to be supported by the triton|is not compatible with the current PyTorch",
        UsageError,
        "this torch has no kernels for this GPU: {line}. "
        f"Install another build (pytorch.org; older GPUs need an older CUDA), {USE_CPU}",
    ),
    (
        r"busy or unavailable",
        UsageError,
        "another process has this GPU to itself: {line}. End it (`nvidia-smi` names it), or take another GPU "
        "(CUDA_VISIBLE_DEVICES)",
    ),
    (
        r"invalid device ordinal|No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver"
        r"|CUDA unknown error|CUDA driver initialization failed|Unexpected error from cudaGetDeviceCount",
        UsageError,
        "torch cannot use this GPU: {line}. See whether `nvidia-smi` lists it, and what CUDA_VISIBLE_DEVICES is set "
        f"to; after an update of the driver start the machine again, {USE_CPU}",
    ),
    (
        r"device-side assert triggered",
        LostDeviceError,
        "a check in a GPU kernel failed: {line}. Most often an index is out of range: `hornbook verify RUN --data` "
        "reads the tokens. With CUDA_LAUNCH_BLOCKING=1 the traceback names the operation",
    ),
    (
        r"illegal memory access|illegal instruction|illegal address|misaligned address|unspecified launch failure"
        r"|launch timed out|hardware stack error|invalid program counter|operation not supported on global"
        r"|uncorrectable|ECC error|CUDA error: unknown error|Cuda failure|unhandled cuda error|fallen off the bus"
        r"|GPU is lost|\bXid\b|(CUBLAS|CUDNN)_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)",
        LostDeviceError,
        "the GPU failed: {line}. `dmesg | grep -i xid` has the driver's word for it, `hornbook doctor --deep` checks "
        "the card",
    ),
)
"""(pattern of a line, class, text for people in which `{line}` is that line).

The first that matches counts: NCCL reports full shared memory or missing memory as a failure of CUDA or the system. Not
in it: NCCL's remote, network and time-out errors, which say that another rank is gone (`run/launch/rank.py`).
"""


def recognize(text: str) -> HornbookError | None:
    """The error to raise for a library's text; None for a text that is of no device."""
    for pattern, kind, told in _FAULTS:
        if lines := [line for line in text.splitlines() if re.search(pattern, line)]:
            line = lines[-1].strip().rstrip(".: ")  # NCCL comes to the cause last
            return kind(told.format(line=_shortened(line)).rstrip(": "))
    return None


def device_error(error: BaseException | None) -> HornbookError | None:
    """The error to raise instead of one of a device, or of the error that caused it; None for any other."""
    while error is not None and not isinstance(error, HornbookError):
        text = str(error)
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            text = text if "memory" in text else f"out of memory: {text}"
        if isinstance(error, RuntimeError | MemoryError | OSError) and (known := recognize(text)) is not None:
            return known
        error = error.__cause__
    return None


def _shortened(line: str) -> str:
    """A line without torch's advice; of a refused allocation with what was asked for, what is free, and who has it."""
    line = re.sub(r"^(\[enforce fail at [^]]*\] .*?\. |out of memory:? ?)|\.? Please (update|try|check) .*", "", line)
    line = re.sub(r"found version (\d\d)0(\d)0", r"it supports CUDA \1.\2", line)
    if "Tried to allocate" not in line:
        return line
    wanted = re.search(r"Tried to allocate [\d.]+ \w+", line)
    free = re.search(r"GPU \d+ has a total capac\w+ of [\d.]+ \w+ of which [\d.]+ \w+ is free", line)
    others = re.findall(r"Process (\d+) has ([\d.]+ \w+) memory in use", line)
    parts = [match[0].replace("Tried", "tried") for match in (wanted, free) if match]
    parts += [f"process {number} has {size} of it (`nvidia-smi` names it: end it)" for number, size in others]
    return "; ".join(parts) or line
