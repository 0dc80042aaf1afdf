"""What kernels compute with: bfloat16 as bits, and an exponential that vectorises."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import types
from numba.extending import intrinsic, overload
from numba.np.numpy_support import carray

from hornbook.kernels.compiled import pointer

OPTIONS = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy", "boundscheck": False}
"""How kernels are compiled: sums may be reordered (so they vectorise), infinities and NaN keep their meaning.

A kernel's row function needs `inline="always"` as well. As a function of its own it exists twice, compiled alone and
compiled into the kernel, with other bits; which one runs would depend on whether the kernel came from numba's cache.

A loop that sums must not store. Before a loop that loads and stores, the compiled code asks how far apart the two
arrays lie, and where they are close it takes one value at a time: a sum has other bits then, as `malloc` decides.
"""
EXACT = {"error_model": "numpy", "boundscheck": False}
"""For kernels whose bits are those of a reference: no product is contracted with a sum, nothing is reordered."""
UNBOUNDED = 1 << 40
"""Declared length of an argument array: kernels index within the shapes they are told."""


def _float_bits_code(typingctx, value):  # noqa: ARG001
    def generate(_context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


float_bits: Any = intrinsic(_float_bits_code)
"""The bits of a float32. With numba's `view` instead, loops over bfloat16 do not vectorise: nine times as slow."""


def _bits_float_code(typingctx, bits):  # noqa: ARG001
    def generate(_context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


bits_float: Any = intrinsic(_bits_float_code)
"""The float32 of these bits."""


def _fetch_add_code(typingctx, pointer):  # noqa: ARG001
    def generate(_context, builder, _signature, arguments):
        return builder.atomic_rmw("add", arguments[0], ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


fetch_add: Any = intrinsic(_fetch_add_code)
"""Add one to the int64 at a pointer, atomically; returns its value before."""


def _greater_code(typingctx, a, b):  # noqa: ARG001
    def generate(_context, builder, _signature, arguments):
        kind = ir.FloatType()
        function = builder.module.declare_intrinsic("llvm.maximum", [kind], ir.FunctionType(kind, [kind, kind]))
        return builder.call(function, arguments, fastmath=("nsz",))

    return types.float32(types.float32, types.float32), generate


_greater: Any = intrinsic(_greater_code)
"""The greater of two float32, NaN if either is: a loop of it vectorises, which one of Python's `max` does not."""


@njit(inline="always")
def bf16(address):
    """The bfloat16 values (as bits) at an address."""
    return carray(pointer(address), UNBOUNDED, np.uint16)


@njit(inline="always")
def f32(address):
    """The float32 values at an address."""
    return carray(pointer(address), UNBOUNDED, np.float32)


@njit(inline="always")
def f64(address):
    """The float64 values at an address."""
    return carray(pointer(address), UNBOUNDED, np.float64)


@njit(inline="always")
def u8(address):
    """The uint8 values at an address."""
    return carray(pointer(address), UNBOUNDED, np.uint8)


@njit(inline="always")
def i32(address):
    """The int32 values at an address."""
    return carray(pointer(address), UNBOUNDED, np.int32)


@njit(inline="always")
def i64(address):
    """The int64 values at an address."""
    return carray(pointer(address), UNBOUNDED, np.int64)


def load(values, i):
    """Element i as float32."""
    raise NotImplementedError("only in kernels")


def store(values, i, value):
    """Write a float32 to element i, rounded to nearest even where the array is bfloat16."""
    raise NotImplementedError("only in kernels")


@overload(load, inline="always")
def _load(values, i):  # noqa: ARG001
    if values.dtype == types.uint16:
        return lambda values, i: bits_float(np.uint32(np.uint32(values[i]) << np.uint32(16)))
    return lambda values, i: values[i]


@overload(store, inline="always")
def _store(values, i, value):  # noqa: ARG001
    if values.dtype != types.uint16:

        def plain(values, i, value):
            values[i] = value

        return plain

    def rounded(values, i, value):
        bits = float_bits(np.float32(value))
        # Half of the last bit that is kept, less one where that bit is 0: what lies in the middle goes to the even one.
        even = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
        values[i] = np.uint16(np.uint32(bits + np.uint32(0x7FFF) + even) >> np.uint32(16))

    return rounded


def store_random(values, i, value, bits):
    """Write a float32 to element i; where the array is bfloat16, rounded stochastically by the low 16 of some bits."""
    raise NotImplementedError("only in kernels")


@overload(store_random, inline="always")
def _store_random(values, i, value, bits):  # noqa: ARG001
    if values.dtype != types.uint16:

        def plain(values, i, value, bits):  # noqa: ARG001
            values[i] = value

        return plain

    def rounded(values, i, value, bits):
        drawn = np.uint32(bits & np.uint32(0xFFFF))
        values[i] = np.uint16(np.uint32(float_bits(np.float32(value)) + drawn) >> np.uint32(16))

    return rounded


@njit(inline="always")
def mix32(x):
    """Scramble 32 bits, bijectively (Wellons 2018, "Prospecting for hash functions": `lowbias32`)."""
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(16))) * np.uint32(0x7FEB352D))
    x = np.uint32(np.uint32(x ^ np.uint32(x >> np.uint32(15))) * np.uint32(0x846CA68B))
    return np.uint32(x ^ np.uint32(x >> np.uint32(16)))


LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
COEFFICIENTS = tuple(np.float32(1 / c) for c in (1, 1, 2, 6, 24, 120, 720))


@njit(inline="always", **OPTIONS)
def exponential(x):
    """e^x in float32 to a relative error of 2.4e-7: x = n ln 2 + r, a Taylor polynomial of r, times 2^n by its bits.

    Above 88 the result is infinite and below -87 zero; NaN stays NaN.
    """
    clipped = min(max(x, np.float32(-87.0)), np.float32(88.0))
    n = np.floor(clipped * LOG2_E + np.float32(0.5))
    r = clipped - n * LN2_HIGH - n * LN2_LOW
    y = COEFFICIENTS[6]
    for k in (5, 4, 3, 2, 1, 0):
        y = y * r + COEFFICIENTS[k]
    y *= bits_float(np.uint32((np.int32(n) + np.int32(127)) << np.int32(23)))
    # Comparisons, not sums like x - x, which the compiler may cancel.
    y = np.float32(0) if x < np.float32(-87) else y
    y = np.float32(np.inf) if x > np.float32(88) else y
    return x if np.isnan(x) else y


@njit(inline="always", **OPTIONS)
def total(values, count):
    """Sum of the first `count` float32 values."""
    result = np.float32(0)
    for j in range(count):
        result += values[j]
    return result


@njit(inline="always", **OPTIONS)
def largest(values, count):
    """Greatest of the first `count` values, -inf where there are none, NaN where one is NaN."""
    result = np.float32(-np.inf)
    for j in range(count):
        result = _greater(result, load(values, j))
    return result
