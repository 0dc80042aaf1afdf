"""Texts that torch, CUDA, Triton and NCCL print, as they print them: kind, exit code and remedy."""

import pytest
import torch

from hornbook.errors import DoesNotFitError, Exit, LostDeviceError, SharedMemoryError, UsageError
from hornbook.kernels.device_errors import device_error, recognize

ASYNC = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n"
)
NCCL = (
    "NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, {} (run with NCCL_DEBUG=INFO for details), "
    "NCCL version 2.27.5\n{}\nLast error:\n{}"
)
SYSTEM = (
    "unhandled system error",
    "ncclSystemError: System call (e.g. socket, malloc) or external library call failed.",
)
CUDA = ("unhandled cuda error", "ncclUnhandledCudaError: Call to CUDA function failed.")
SEGMENT = (
    "Error while creating shared memory segment /dev/shm/nccl-WU88OE (size 9637888), error: No space left on device"
)
REFUSED = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.31 GiB is free."
    " Process 4711 has 40.00 GiB memory in use. Including non-PyTorch memory, this process has 37.79 GiB memory in use."
    " Of the allocated memory 36.00 GiB is allocated by PyTorch, and 1.00 GiB is reserved by PyTorch but unallocated."
    " If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True to avoid"
    " fragmentation.  See documentation for Memory Management"
)
TEXTS = {
    Exit.USAGE: {
        "CUDA initialization: The NVIDIA driver on your system is too old (found version 12040). Please update your "
        "GPU driver by downloading and installing a new version from the URL": "(it supports CUDA 12.4). Update",
        "Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda": "driver",
        "CUDA error: no kernel image is available for execution on the device" + ASYNC: "pytorch.org",
        "Found NVIDIA GeForce GTX 1080 which is too old to be supported by the triton GPU compiler": "pytorch.org",
        "CUDA error: CUDA-capable device(s) is/are busy or unavailable" + ASYNC: "nvidia-smi",
        "CUDA error: invalid device ordinal" + ASYNC: "CUDA_VISIBLE_DEVICES",
        "No CUDA GPUs are available": "CUDA_VISIBLE_DEVICES",
        NCCL.format("invalid usage", "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.", "")
        + "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 2000": "rank 1 and rank 0 both",
    },
    Exit.DOES_NOT_FIT: {
        REFUSED: "tried to allocate 2.00 GiB; GPU 0 has a total capacity of 79.10 GiB of which 1.31 GiB is free",
        "CUDA error: out of memory" + ASYNC: "out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`": "CUBLAS",
        "HIP out of memory. Tried to allocate 1.00 GiB.": "tried to allocate 1.00 GiB",
        "[enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 64 bytes.": "DefaultCPUAllocator: can't allocate memory: you tried to allocate 64 bytes",
        NCCL.format(*CUDA, "Cuda failure 2 'out of memory'"): "Cuda failure 2",
    },
    Exit.STORAGE: {
        NCCL.format(*SYSTEM, SEGMENT): "docker run --shm-size",
        "unable to write to file </torch_4711_1234_0>: No space left on device (28)": "</torch_4711_1234_0>",
        "unable to allocate shared memory(shm) for file </torch_4711_12_0>: Success (0)": "--shm-size",
        "DataLoader worker (pid 9) is killed by signal: Bus error. It is possible that dataloader's workers are out of "
        "shared memory. Please try to raise your shared memory limit.": "--shm-size",
    },
    Exit.HARDWARE: {
        "CUDA error: an illegal memory access was encountered" + ASYNC: "dmesg",
        "CUDA error: device-side assert triggered" + ASYNC: "hornbook verify RUN --data",
        "CUDA error: uncorrectable ECC error encountered" + ASYNC: "doctor --deep",
        "CUDA error: unspecified launch failure" + ASYNC: "unspecified",
        "CUDA error: unknown error" + ASYNC: "unknown",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle)`": "cublasGemmEx",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED": "CUDNN",
        "Triton Error [CUDA]: an illegal memory access was encountered": "Triton",
        "HIP error: an illegal memory access was encountered": "HIP",
        NCCL.format(*CUDA, "Cuda failure 719 'unspecified launch failure'"): "719",
        "GPU 0000:3B:00.0: GPU has fallen off the bus.": "fallen off",
    },
}


@pytest.mark.parametrize(
    ("code", "text", "said"), [(code, text, said) for code, texts in TEXTS.items() for text, said in texts.items()]
)
def test_each_text_has_its_exit_code_and_one_line_with_a_remedy(code: Exit, text: str, said: str) -> None:
    known = recognize(text)
    assert known is not None
    assert known.exit_code == code
    assert said in str(known)
    assert len(str(known).splitlines()) == 1


@pytest.mark.parametrize(
    "text",
    [
        NCCL.format(
            "remote process exited", "ncclRemoteError: A call failed possibly due to a network error", "closed"
        ),
        NCCL.format(*SYSTEM, "socketStartConnect: Connect to 10.0.0.1<4711> failed : Software caused connection abort"),
        "CUDA error: invalid argument" + ASYNC,
        "CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx`",
        "out of resource: shared memory, Required: 232448, Hardware limit: 101376",
        "[Errno 28] No space left on device: '/data/runs/a'",
        "mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)",
    ],
)
def test_lost_peers_full_disks_and_defects_are_not_taken_for_it(text: str) -> None:
    assert recognize(text) is None


def test_who_has_the_memory_is_named() -> None:
    assert str(recognize(REFUSED)).endswith("process 4711 has 40.00 GiB of it (`nvidia-smi` names it: end it)")


def test_errors_by_class_and_by_cause() -> None:
    assert isinstance(device_error(torch.OutOfMemoryError("3 GiB")), DoesNotFitError)
    assert isinstance(device_error(torch.AcceleratorError("CUDA error: uncorrectable ECC error")), LostDeviceError)
    wrapped = RuntimeError("backend='inductor' raised")
    wrapped.__cause__ = RuntimeError(REFUSED)
    assert isinstance(device_error(wrapped), DoesNotFitError)
    assert isinstance(device_error(OSError(28, "No space left on device", "/dev/shm/psm_1")), SharedMemoryError)
    assert device_error(OSError(28, "No space left on device", "/data/x")) is None
    assert device_error(UsageError("out of memory")) is None
    assert device_error(ValueError("device-side assert triggered")) is None
    assert str(device_error(MemoryError())) == "out of memory"
