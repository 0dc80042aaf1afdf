"""Which arithmetic a device multiplies fast: bfloat16 where its hardware does, else float32.

A CPU without bfloat16 instructions takes a hundred times as long for a bfloat16 product as for a float32 one, and one
with them may still be slower (AVX-512 without AMX on Intel: half the rate). So a capability that is missing decides,
and one that is there is settled by a measurement of a few milliseconds.
"""

import functools
import time
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hornbook.kernels.torch_versions import has_bf16
from hornbook.model.layers import onednn

Precision = Literal["bf16", "fp32"]

SIDE = 256
"""Side of the square matrices of the measurement."""
ROUNDS = 5
"""Products of each kind, in turn; the least time of each counts, for another process can only add to it."""


class Choice(NamedTuple):
    """What `train.precision = "auto"` becomes on a device, and why, in a few words."""

    precision: Precision
    reason: str


@functools.cache
def choose_precision(device: torch.device) -> Choice:
    """bf16 where the device multiplies it faster than fp32."""
    missing = missing_bf16(device)
    if missing:
        return Choice("fp32", missing)
    if device.type == "cuda":
        return Choice("bf16", "this GPU multiplies bf16")
    ratio = bf16_ratio(device)
    return Choice("bf16" if ratio > 1 else "fp32", f"bf16 runs at {ratio:.2g} x fp32 here")


def missing_bf16(device: torch.device) -> str:
    """Why the device has no bfloat16 arithmetic of its own; "" where it has, or may have."""
    if device.type == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return "" if native else "a GPU before Ampere has no bf16"
    if device.type == "mps":
        return "" if torch.backends.mps.is_macos_or_newer(14, 0) else "MPS has no bf16 before macOS 14"
    return "" if has_bf16() else "this CPU has no bf16 instructions"


@functools.cache
def bf16_ratio(device: torch.device) -> float:
    """Rate of bfloat16 products over that of float32 ones, of square matrices.

    On a CPU with one thread: a process that measures may still fork, which it must not once torch has started others.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        left, right = torch.randn(SIDE, SIDE, device=device), torch.randn(SIDE, SIDE, device=device)
        pairs = [(left, right), (left.bfloat16(), right.bfloat16())]
        for pair in pairs:
            _seconds(*pair)  # the first product of a kind makes its code
        rounds = [[_seconds(*pair) for pair in pairs] for _ in range(ROUNDS)]
    finally:
        torch.set_num_threads(threads)
    single, half = (min(times) for times in zip(*rounds, strict=True))
    return single / half


def _seconds(left: Tensor, right: Tensor) -> float:
    started = time.perf_counter()
    own = left.dtype == torch.float32 and onednn.takes(left, SIDE, SIDE, SIDE**3)
    (onednn.product(left, right) if own else left @ right)[0, 0].item()  # waits for the device
    return time.perf_counter() - started
