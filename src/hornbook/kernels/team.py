"""Kernels of our own on torch's own CPU threads.

A numba kernel with numba's threads would run beside torch's OpenMP team, and the two would fight for the cores. So
a kernel here is a C callback, compiled by numba, that torch's own libgomp runs on its team (`GOMP_parallel`, the entry
point that compilers emit for `#pragma omp parallel`; LLVM's libomp has it too). Threads take chunks of rows from a
shared counter. Where no such library is found, the kernel runs on the calling thread alone.

Arguments travel in one int64 array: next chunk, rows per chunk, rows, then tensors (as addresses),
integers and floats (as bits).
"""

import ctypes
import os
import struct
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import njit, types
from numba.np.numpy_support import carray

from hornbook.kernels.cache import is_kept, kept_callback
from hornbook.kernels.scalar import OPTIONS, bf16, f32, fetch_add

if TYPE_CHECKING:
    from torch import Tensor

SIGNATURE = types.void(types.CPointer(types.int64))
"""Of every kernel."""
NAMES = ("libgomp*", "libomp*", "libiomp*")
"""File names of OpenMP libraries."""
SLOTS, HEADER = 64, 3
"""Length of the argument array at most, and what stands before the arguments."""
CHUNKS = 64
"""Largest number of chunks of rows, for any number of threads: so sums over chunks keep their bits."""
_Arguments = ctypes.c_int64 * SLOTS
_FLOAT, _INTEGER = struct.Struct("=d"), struct.Struct("=q")


class Kernel:
    """Work on some rows, compiled for a dtype when first launched with it.

    The function takes the first row, one past the last, the number of their chunk, the arguments, and how to read
    values of the dtype. Which dtype, the first argument says (`is_bf16`). A run computes in one, so the other's code is
    not waited for.
    """

    def __init__(self, function: Callable[..., None], options: dict[str, Any] = OPTIONS) -> None:
        """`options` of numba: with `EXACT`, every operation rounds as torch's does."""
        self._function, self._options, self._callbacks = function, options, dict[bool, Any]()

    def callback(self, bfloat16: bool) -> Any:
        """Numba's C callback for tensors of bfloat16, else of float32."""
        if bfloat16 not in self._callbacks:
            self._callbacks[bfloat16] = kept_callback(self.variant(bfloat16), SIGNATURE, **self._options)
        return self._callbacks[bfloat16]

    def is_ready(self, bfloat16: bool) -> bool:
        """Whether it is compiled for a dtype, here or on disk."""
        return bfloat16 in self._callbacks or is_kept(self.variant(bfloat16), self._options)

    def variant(self, bfloat16: bool) -> Callable[[Any], None]:
        """The function of the pointer alone that is compiled for a dtype."""
        work, values = njit(inline="always", **self._options)(self._function), bf16 if bfloat16 else f32

        def kernel(pointer: Any) -> None:
            arguments = carray(pointer, SLOTS)[HEADER:]
            # Chunks come from a counter that all threads share, so a slow thread takes fewer of them.
            while True:
                first, last, chunk = _next_rows(pointer)
                if first == last:
                    return
                work(first, last, chunk, arguments, values)

        kernel.__module__ = self._function.__module__
        kernel.__qualname__ = f"{self._function.__qualname__}_{'bf16' if bfloat16 else 'f32'}"
        return kernel


def supports(*tensors: "Tensor") -> bool:
    """Whether kernels can run on these: plain CPU tensors of bfloat16 or float32, outside tracing."""
    import torch

    return not torch.compiler.is_compiling() and all(
        type(tensor) in (torch.Tensor, torch.nn.Parameter)
        and tensor.device.type == "cpu"
        and tensor.dtype in (torch.bfloat16, torch.float32)
        for tensor in tensors
    )


def launch(kernel: Kernel, rows: int, *arguments: "Tensor | int | float") -> None:
    """Run a kernel over `rows` rows; `arguments` begin with `is_bf16` of the tensors, which must be contiguous."""
    import torch

    callback = kernel.callback(bool(arguments[0]))
    step = _rows_per_chunk(rows)
    packed = _Arguments(0, step, rows, *map(_pack, arguments))
    threads, parallel = torch.get_num_threads(), _gomp_parallel()
    if threads == 1 or parallel is None or rows == step:
        callback.ctypes(packed)
    else:
        parallel(callback.address, ctypes.addressof(packed), threads, 0)


def chunks(rows: int) -> int:
    """Number of chunks that `launch` makes of this number of rows."""
    return -(-rows // _rows_per_chunk(rows))


def is_bf16(tensor: "Tensor") -> int:
    """The flag by which kernels choose how to read."""
    import torch

    return int(tensor.dtype == torch.bfloat16)


def _rows_per_chunk(rows: int) -> int:
    return max(1, -(-rows // CHUNKS))


def _pack(argument: "Tensor | int | float") -> int:
    if isinstance(argument, float):
        return _INTEGER.unpack(_FLOAT.pack(argument))[0]
    if isinstance(argument, int):
        return argument
    assert argument.is_contiguous()
    return argument.data_ptr()


@cache
def _gomp_parallel() -> Callable[[int, int, int, int], None] | None:
    """`GOMP_parallel(function, data, threads, flags)` of the OpenMP library that torch runs on, if it is found."""
    library = team_library()
    if library is None:
        return None
    function = ctypes.CDLL(str(library), mode=os.RTLD_NOLOAD).GOMP_parallel
    function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    function.restype = None
    return function


def team_library() -> Path | None:
    """The OpenMP library that torch runs on, if it is found and has `GOMP_parallel`; else kernels have one thread."""
    for path in openmp_libraries():
        try:
            library = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD)
        except OSError:
            continue  # not the one in use: a second team is what this is meant to avoid
        if hasattr(library, "GOMP_parallel"):
            return path
    return None


def openmp_libraries(
    torch_folder: Path | None = None,
    prefix: Path = Path(sys.prefix),
    maps: Path = Path("/proc/self/maps"),
) -> list[Path]:
    """Files that may be torch's OpenMP library: beside torch first, then whatever this process has mapped (Linux).

    Wheels have `torch/lib/libgomp.so.1` (Linux, x86 and arm64), `torch/lib/libomp.dylib` (macOS) or a file in
    `torch.libs`; conda's torch uses one in the environment's `lib`.
    """
    if torch_folder is None:
        import torch

        torch_folder = Path(torch.__file__).parent
    folders = (torch_folder / "lib", torch_folder.parent / "torch.libs", prefix / "lib")
    found = [path for folder in folders for pattern in NAMES for path in sorted(folder.glob(pattern))]
    if maps.exists():
        mapped = {Path(line.split(maxsplit=5)[5].strip()) for line in maps.read_text().splitlines() if "omp" in line}
        found += sorted(path for path in mapped if any(path.match(pattern) for pattern in NAMES))
    return found


@njit
def float_argument(a, slot):
    """A float argument, as float32."""
    return np.float32(np.int64(a[slot]).view(np.float64))


@njit
def _next_rows(pointer):
    """The next rows to work on and their chunk: (first, last, chunk); first == last when none are left."""
    header = carray(pointer, HEADER)
    chunk = fetch_add(pointer)  # slot 0; slots 1 and 2 are rows per chunk and rows
    first = min(chunk * header[1], header[2])
    return first, min(first + header[1], header[2]), chunk


# ---- Freed memory is kept: glibc returns large blocks to the system, which hands them back page by page, filled with
# zeros. A training step frees and asks for the same gigabyte of activations again and again, and fresh pages cost more
# than the kernels that write to them (filling 134 MB: 35 ms in fresh pages, 2 ms in kept ones; docs/speed.md).

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Make this process's allocator reuse large blocks; False where the C library is not glibc. It cannot be undone."""
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "gnu_get_libc_version"):
        return False
    return bool(library.mallopt(M_MMAP_THRESHOLD, 2**30) and library.mallopt(M_TRIM_THRESHOLD, LARGEST))
