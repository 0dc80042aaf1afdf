"""Keep freed memory: glibc returns large blocks to the system, which hands them back page by page, filled with zeros.

A training step frees and asks for the same gigabyte of activations again and again, and fresh pages cost more than
the kernels that write to them (filling 134 MB: 35 ms in fresh pages, 2 ms in kept ones; docs/speed.md).
"""

import ctypes
import sys

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
