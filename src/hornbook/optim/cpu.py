"""Kernels for the updates of `hornbook.optim.low_precision`: one pass over memory, with the bits of the reference.

They are compiled without reordering or contracting anything (`EXACT`), so vectors of any width and any number of threads
give the same bits. A loop that reads and writes few arrays vectorises; hence the short loops over a block, which stays
in the cache.
"""

from typing import TYPE_CHECKING

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
    i32,
    load,
    mix32,
    store_random,
    u8,
)
from hornbook.kernels.team import Kernel, chunks, float_argument, is_bf16, launch
from hornbook.optim.codes import LEAST, LOWEST, ONE, SHIFTS, buckets, dynamic_map
from hornbook.optim.config.adamw_8bit import BLOCK
from hornbook.optim.stochastic import SECOND

if TYPE_CHECKING:
    from hornbook.optim.low_precision import Factors

factor = float_argument
RUN = 1024
"""Values whose state is not in blocks are taken in runs of so many."""
Packed = tuple[float, ...]
"""Decay, beta1, 1 - beta1, beta2, 1 - beta2, root, eps, rate."""


def packed(by: "Factors") -> Packed:
    """The factors as kernels take them."""
    values = (by.decay, by.beta1, 1 - by.beta1, by.beta2, 1 - by.beta2, by.root, by.eps, by.rate)
    return tuple(float(value) for value in values)


def update_bf16(p: Tensor, g: Tensor, m: Tensor, v: Tensor, by: Packed, key: tuple[int, int], first: int) -> None:
    """Update p, m and v in place; p and g float32 or bfloat16, m and v bfloat16. All contiguous."""
    count = p.numel()
    launch(_bf16_kernel, -(-count // RUN), is_bf16(p), count, *key, first, p, g, m, v, *by)


def update_8bit(p: Tensor, g: Tensor, state: list[Tensor], by: Packed, key: tuple[int, int], first: int) -> None:
    """Update p and the state (codes and scales of both moments) in place; p and g float32 or bfloat16, contiguous."""
    width = p.shape[-1]
    rows = p.numel() // width * -(-width // BLOCK)
    scratch = torch.empty(chunks(rows), 2, BLOCK)
    tables = [table(signed) for signed in (True, False) for table in (dynamic_map, buckets)]
    launch(_blocks_kernel, rows, is_bf16(p), width, *key, first, p, g, *state, *tables, scratch, *by)


def exact(function):
    """A kernel with the bits of its reference."""
    return Kernel(function, EXACT)


@njit(inline="always")
def first_word(index, key0, key1):
    """The first word of draws of the value `index` of a parameter (`hornbook.optim.stochastic.draws`)."""
    word = mix32(np.uint32(np.uint32(index) ^ key0))
    return mix32(np.uint32(np.uint32(word + key1) + np.uint32(index >> np.uint64(32))))


@exact
def _bf16_kernel(first, last, _chunk, a, values):
    count, key0, key1, begin = a[1], np.uint32(a[2]), np.uint32(a[3]), a[4]
    p, g, m, v = values(a[5]), values(a[6]), bf16(a[7]), bf16(a[8])
    decay, beta1, rest1, beta2 = (
        factor(a, 9),
        factor(a, 10),
        factor(a, 11),
        factor(a, 12),
    )
    rest2, root, eps, rate = factor(a, 13), factor(a, 14), factor(a, 15), factor(a, 16)
    for run in range(first, last):
        start = run * RUN
        size = min(RUN, count - start)
        p_run, g_run, m_run, v_run = p[start:], g[start:], m[start:], v[start:]
        for j in range(size):
            word = first_word(np.uint64(begin + start + j), key0, key1)
            gradient = load(g_run, j)
            moment = load(m_run, j) * beta1 + gradient * rest1
            square = load(v_run, j) * beta2 + gradient * gradient * rest2
            value = load(p_run, j) * decay - moment / (np.sqrt(square) / root + eps) * rate
            store_random(m_run, j, moment, word)
            store_random(v_run, j, square, np.uint32(word >> np.uint32(16)))
            store_random(p_run, j, value, mix32(np.uint32(word + np.uint32(SECOND))))


@njit(inline="always")
def encode_block(moments, codes, table, size, shift, least, negative):
    """Write the codes of some moments; returns their scale. `table`: `hornbook.optim.codes.buckets`.

    shift, least: of that table; negative: number of its entry for the first bucket of negative values.
    """
    largest = np.uint32(0)
    for j in range(size):
        largest = max(largest, np.uint32(float_bits(moments[j]) & np.uint32(0x7FFFFFFF)))
    scale = bits_float(largest)
    divisor = scale if largest > np.uint32(0) else np.float32(1)
    mask = np.int32((1 << shift) - 1)
    for j in range(size):
        signed = float_bits(moments[j] / divisor)
        sign = np.int32(signed >> np.uint32(31))
        bits = np.int32(signed & np.uint32(0x7FFFFFFF))
        inside = max(bits, np.int32(LOWEST))
        entry = table[np.int32(np.int32(inside - np.int32(LOWEST)) >> np.int32(shift)) + sign * np.int32(negative)]
        away = np.int32(np.int32(inside & mask) >= np.int32(entry & np.int32(0xFFFFF)))
        code = np.int32(entry >> np.int32(20)) + (away if sign == np.int32(0) else -away)
        codes[j] = np.uint8(code if bits >= np.int32(least) else np.int32(0))
    return scale


UNSIGNED_SHIFT, SIGNED_SHIFT, UNSIGNED_LEAST = SHIFTS[False], SHIFTS[True], LEAST[False]
NEGATIVE = (ONE - LOWEST >> SIGNED_SHIFT) + 1


@exact
def _blocks_kernel(first, last, chunk, a, values):
    width, key0, key1, begin = a[1], np.uint32(a[2]), np.uint32(a[3]), a[4]
    p, g, m, m_scale, v, v_scale = values(a[5]), values(a[6]), u8(a[7]), f32(a[8]), u8(a[9]), f32(a[10])
    m_values, m_table, v_values, v_table = f32(a[11]), i32(a[12]), f32(a[13]), i32(a[14])
    moments = f32(a[15])[2 * BLOCK * chunk : 2 * BLOCK * chunk + BLOCK]
    squares = f32(a[15])[2 * BLOCK * chunk + BLOCK : 2 * BLOCK * (chunk + 1)]
    decay, beta1, rest1, beta2 = factor(a, 16), factor(a, 17), factor(a, 18), factor(a, 19)
    rest2, root, eps, rate = factor(a, 20), factor(a, 21), factor(a, 22), factor(a, 23)
    per_row = (width + BLOCK - 1) // BLOCK
    for block in range(first, last):
        start = block // per_row * width + block % per_row * BLOCK
        size = min(BLOCK, width - block % per_row * BLOCK)
        p_block, g_block, m_block, v_block = p[start:], g[start:], m[start:], v[start:]
        scale = m_scale[block]
        for j in range(size):
            moments[j] = m_values[m_block[j]] * scale * beta1 + load(g_block, j) * rest1
        scale = v_scale[block]
        for j in range(size):
            gradient = load(g_block, j)
            squares[j] = v_values[v_block[j]] * scale * beta2 + gradient * gradient * rest2
        for j in range(size):
            value = load(p_block, j) * decay - moments[j] / (np.sqrt(squares[j]) / root + eps) * rate
            word = first_word(np.uint64(begin + start + j), key0, key1)
            store_random(p_block, j, value, mix32(np.uint32(word + np.uint32(SECOND))))
        m_scale[block] = encode_block(moments, m_block, m_table, size, SIGNED_SHIFT, 0, NEGATIVE)
        v_scale[block] = encode_block(squares, v_block, v_table, size, UNSIGNED_SHIFT, UNSIGNED_LEAST, 0)
