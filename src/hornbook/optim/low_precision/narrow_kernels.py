"""Kernels for the updates of `narrow_adamw.py`: one pass over memory, with the bits of the reference.

They are compiled without reordering or contracting anything (`EXACT`), so any vectors and any number of threads give
the same bits. A loop that reads and writes few arrays vectorises; hence the short loops over a block, which stays
in the cache.
"""

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numba import njit
from torch import Tensor

from hornbook.kernels.scalar import (
    EXACT,
    bf16,
    bits_float,
    f32,
    float_bits,
    load,
    mix32,
    store_random,
    u8,
)
from hornbook.kernels.team import Kernel, chunks, float_argument, is_bf16, launch
from hornbook.optim.config.adamw_config import BLOCK, AdamW8bitRule, AdamWRule
from hornbook.optim.config.classic_rules import LAMBRule, LionRule
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.optim.config.schedule_free_config import ScheduleFree
from hornbook.optim.kernels import lamb_kernel, lion_kernel, schedule_free_kernel
from hornbook.optim.low_precision.codes import DECADES, NINTH, TINY, dynamic_map, grid
from hornbook.optim.low_precision.stochastic import SECOND, Key
from hornbook.optim.low_precision.vectors import (
    byte_planes,
    decode_vectors,
    encode_signed_vectors,
    encode_unsigned_vectors,
)


@dataclass(frozen=True)
class Coefficients:
    """Of one update."""

    decay: float
    """1 - learning rate x weight decay."""
    rate: float | Tensor
    """Learning rate over the bias of the first moment."""
    root: float | Tensor
    """One over the root of the bias of the second moment."""
    beta1: float
    beta2: float
    eps: float


RUN = 1024
"""Values whose state is not in blocks are taken in runs of so many."""
Packed = tuple[float, ...]
"""Decay, beta1, 1 - beta1, beta2, 1 - beta2, inverse root, eps, rate."""


def packed(by: Coefficients) -> Packed:
    """The factors as kernels take them."""
    values = (by.decay, by.beta1, 1 - by.beta1, by.beta2, 1 - by.beta2, by.root, by.eps, by.rate)
    return tuple(float(value) for value in values)


def update_bf16(p: Tensor, g: Tensor, m: Tensor, v: Tensor, by: Packed, key: Key, first: int) -> None:
    """Update p, m and v in place; p and g float32 or bfloat16, m and v bfloat16. All contiguous."""
    count = p.numel()
    launch(_bf16_kernel, -(-count // RUN), is_bf16(p), count, *key, first, p, g, m, v, *by)


def update_8bit(p: Tensor, g: Tensor, state: list[Tensor], by: Packed, key: Key, first: int) -> None:
    """Update p and the state (codes and scales of both moments) in place; p and g float32 or bfloat16, contiguous."""
    width = p.shape[-1]
    rows = p.numel() // width * -(-width // BLOCK)
    scratch = torch.empty(chunks(rows), 2, BLOCK)
    launch(_blocks_kernel, rows, is_bf16(p), width, *key, first, p, g, *state, *_tables(), scratch, *by)


@cache
def _tables() -> list[Tensor]:
    return [table(signed) for table in (dynamic_map, byte_planes) for signed in (True, False)]


def kernels_of(config: OptimizerConfig, pure: bool) -> list[Kernel]:
    """The kernels that an optimizer will launch on a CPU; `pure`: its parameters are bfloat16."""
    rules = [config, *(group.rule for group in config.groups if group.rule is not None)]
    found = [_blocks_kernel] if any(isinstance(rule, AdamW8bitRule) for rule in rules) else []
    if any(pure or (isinstance(rule, AdamWRule) and rule.state == "bf16") for rule in rules):
        found.append(_bf16_kernel)
    others = {LionRule: lion_kernel, LAMBRule: lamb_kernel, ScheduleFree: schedule_free_kernel}
    used = [each for kind, each in others.items() if any(isinstance(rule, kind) for rule in rules)]
    return [*found, *([] if pure else used)]


def exact(function):
    """A kernel with the bits of its reference."""
    return Kernel(function, EXACT)


@njit(inline="always")
def first_word(index, key0, key1):
    """The first word of draws of the value `index` of a parameter (`stochastic.draws`)."""
    word = mix32(np.uint32(np.uint32(index) ^ key0))
    return mix32(np.uint32(np.uint32(word + key1) + np.uint32(index >> np.uint64(32))))


@exact
def _bf16_kernel(first, last, _chunk, a, values):
    count, key0, key1, begin = a[1], np.uint32(a[2]), np.uint32(a[3]), a[4]
    p, g, m, v = values(a[5]), values(a[6]), bf16(a[7]), bf16(a[8])
    decay, beta1, rest1, beta2 = (
        float_argument(a, 9),
        float_argument(a, 10),
        float_argument(a, 11),
        float_argument(a, 12),
    )
    rest2, root, eps, rate = float_argument(a, 13), float_argument(a, 14), float_argument(a, 15), float_argument(a, 16)
    for run in range(first, last):
        start = run * RUN
        size = min(RUN, count - start)
        p_run, g_run, m_run, v_run = p[start:], g[start:], m[start:], v[start:]
        for j in range(size):
            word = first_word(np.uint64(begin + start + j), key0, key1)
            gradient = load(g_run, j)
            moment = load(m_run, j) * beta1 + gradient * rest1
            square = load(v_run, j) * beta2 + gradient * gradient * rest2
            value = load(p_run, j) * decay - moment / (np.sqrt(square) * root + eps) * rate
            store_random(m_run, j, moment, word)
            store_random(v_run, j, square, np.uint32(word >> np.uint32(16)))
            store_random(p_run, j, value, mix32(np.uint32(word + np.uint32(SECOND))))


def _encoder(signed: bool):
    """A function that writes the codes of some moments and returns their scale (`codes.quantize`)."""
    by = grid(signed)
    zero, one, limits, scales, counts = by.zero, by.one, by.limits, by.scales, by.counts
    before, last = np.float32(by.first - 1), np.float32(by.last)
    encode_vectors = encode_signed_vectors if signed else encode_unsigned_vectors

    @njit(inline="always")
    def encode(moments, codes, size):
        largest = np.uint32(0)
        for j in range(size):
            largest = max(largest, np.uint32(float_bits(moments[j]) & np.uint32(0x7FFFFFFF)))
        scale = bits_float(largest) if bits_float(largest) >= np.float32(TINY) else np.float32(0)
        inverse = np.float32(1) / scale if scale > np.float32(0) else np.float32(0)
        for j in range(encode_vectors(moments, inverse, codes, size), size):
            x = moments[j] * inverse
            magnitude = abs(x)
            per_unit, count = scales[0], counts[0]
            for k in range(DECADES - 1):
                above = magnitude >= limits[k]
                per_unit, count = (scales[k + 1] if above else per_unit), (counts[k + 1] if above else count)
            inside = magnitude * per_unit - count * NINTH
            inside = inside if inside > np.float32(0) else np.float32(0)
            inside = inside if inside < count - np.float32(1) else count - np.float32(1)
            number = inside + (count - before)
            number = last if magnitude >= one else number
            number = np.int32(number if magnitude >= zero else np.float32(0))
            if signed:
                number = np.int32(127) + (-min(number, np.int32(127)) if x < np.float32(0) else number)
            codes[j] = np.uint8(number)
        return scale

    return encode


encode_signed, encode_unsigned = _encoder(signed=True), _encoder(signed=False)


@exact
def _blocks_kernel(first, last, chunk, a, values):
    width, key0, key1, begin = a[1], np.uint32(a[2]), np.uint32(a[3]), a[4]
    p, g, m, m_scale, v, v_scale = values(a[5]), values(a[6]), u8(a[7]), f32(a[8]), u8(a[9]), f32(a[10])
    m_values, v_values, m_planes, v_planes = f32(a[11]), f32(a[12]), u8(a[13]), u8(a[14])
    moments = f32(a[15])[2 * BLOCK * chunk : 2 * BLOCK * chunk + BLOCK]
    squares = f32(a[15])[2 * BLOCK * chunk + BLOCK : 2 * BLOCK * (chunk + 1)]
    decay, beta1, rest1, beta2 = (
        float_argument(a, 16),
        float_argument(a, 17),
        float_argument(a, 18),
        float_argument(a, 19),
    )
    rest2, root, eps, rate = float_argument(a, 20), float_argument(a, 21), float_argument(a, 22), float_argument(a, 23)
    per_row = (width + BLOCK - 1) // BLOCK
    for block in range(first, last):
        start = block // per_row * width + block % per_row * BLOCK
        size = min(BLOCK, width - block % per_row * BLOCK)
        p_block, g_block, m_block, v_block = p[start:], g[start:], m[start:], v[start:]
        for j in range(decode_vectors(m_block, m_planes, moments, size), size):
            moments[j] = m_values[m_block[j]]
        for j in range(decode_vectors(v_block, v_planes, squares, size), size):
            squares[j] = v_values[v_block[j]]
        m_old, v_old = m_scale[block], v_scale[block]
        for j in range(size):
            moments[j] = moments[j] * m_old * beta1 + load(g_block, j) * rest1
        for j in range(size):
            gradient = load(g_block, j)
            squares[j] = squares[j] * v_old * beta2 + gradient * gradient * rest2
        for j in range(size):
            value = load(p_block, j) * decay - moments[j] / (np.sqrt(squares[j]) * root + eps) * rate
            word = first_word(np.uint64(begin + start + j), key0, key1)
            store_random(p_block, j, value, mix32(np.uint32(word + np.uint32(SECOND))))
        m_scale[block] = encode_signed(moments, m_block, size)
        v_scale[block] = encode_unsigned(squares, v_block, size)
