"""Float32 products by oneDNN, on CPUs where torch's own take twice as long.

torch multiplies float32 by MKL, which uses AVX-512 on Intel's CPUs alone: on others it computes with vectors of half
the width. oneDNN, which torch brings too, uses what the CPU has (docs/speed.md has the rates of both).

What computes a product follows from the kind of the CPU and from the shape, never from a measurement: each run on a
machine, and its resume, gets the same bits. oneDNN gives each row of a product the same bits whatever other rows there
are, and however many threads.
"""

import functools
import platform
import re
from pathlib import Path

import torch
from torch import Tensor

from hornbook.kernels.torch_versions import onednn_linear

TOKENS_UNIT = 64
"""Numbers of tokens are multiples of it. oneDNN makes code for each shape and keeps it, half a MiB for the last 1,024:
what has another number of tokens each time, as the tokens of an expert, would fill that."""
LEAST_PRODUCTS = 2**21
"""Multiplications below which the call takes longer than it saves."""
LEAST_WIDTH = 16
"""The narrowest matrices, as of low-rank updates, at which it gains."""


@functools.cache
def is_faster(processor_info: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether oneDNN multiplies float32 faster than torch's BLAS on this CPU: AVX-512 that is not Intel's."""
    if platform.machine().lower() not in ("x86_64", "amd64") or not torch.backends.mkldnn.is_available():
        return False
    try:
        found = re.search(r"^vendor_id\s*:\s*(\w+)", processor_info.read_text(), re.MULTILINE)
    except OSError:
        return False
    foreign = found is not None and found[1] != "GenuineIntel"
    return foreign and torch.backends.mkl.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"


def takes(x: Tensor, tokens: int, narrowest: int, multiplications: int) -> bool:
    """Whether oneDNN computes a product with float32 `x`: of plain tensors, outside tracing.

    tokens: one of its dims, which may be another from step to step. narrowest: the least of its dims.
    """
    return (
        tokens % TOKENS_UNIT == 0
        and multiplications >= LEAST_PRODUCTS
        and narrowest >= LEAST_WIDTH
        and type(x) in (Tensor, torch.nn.Parameter)
        and x.device.type == "cpu"
        and not torch.compiler.is_compiling()
        and is_faster()
    )


def product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """left [..., k] times the transpose of right [m, k], plus bias [m]; without gradients.

    Where it is not contiguous, left is copied by torch. Part of a wider matrix on the right is copied here: oneDNN has
    no code for it but its reference, which takes some hundred times as long.
    """
    if not right.is_contiguous() and not right.T.is_contiguous():
        right = right.contiguous()
    return onednn_linear(left, right, bias)
