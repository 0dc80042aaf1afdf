"""What kernels compute with: bfloat16 as bits, and an exponential that vectorises."""

import numpy as np
from llvmlite import ir
from numba import carray, njit
from numba.core import cgutils, types
from numba.extending import intrinsic, overload

OPTIONS = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy", "boundscheck": False}
"""How kernels are compiled: sums may be reordered (so they vectorise), infinities and NaN keep their meaning."""
UNBOUNDED = 1 << 40
"""Declared length of an argument array: kernels index within the shapes they are told."""


@intrinsic
def float_bits(typingctx, value):  # noqa: ARG001
    """The bits of a float32."""

    def generate(_context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(32))

    return types.uint32(types.float32), generate


@intrinsic
def bits_float(typingctx, bits):  # noqa: ARG001
    """The float32 of these bits."""

    def generate(_context, builder, _signature, arguments):
        return builder.bitcast(arguments[0], ir.FloatType())

    return types.float32(types.uint32), generate


@intrinsic
def _pointer(typingctx, number):  # noqa: ARG001
    """An integer as a pointer."""

    def generate(_context, builder, _signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), generate


@intrinsic
def fetch_add(typingctx, pointer):  # noqa: ARG001
    """Add one to the int64 behind a pointer, atomically; returns what it was."""

    def generate(_context, builder, _signature, arguments):
        return builder.atomic_rmw("add", arguments[0], ir.Constant(ir.IntType(64), 1), "monotonic")

    return types.int64(types.CPointer(types.int64)), generate


@njit(inline="always")
def bf16(address):
    """The bfloat16 values (as bits) at an address."""
    return carray(_pointer(address), UNBOUNDED, np.uint16)


@njit(inline="always")
def f32(address):
    """The float32 values at an address."""
    return carray(_pointer(address), UNBOUNDED, np.float32)


@njit(inline="always")
def i64(address):
    """The int64 values at an address."""
    return carray(_pointer(address), UNBOUNDED, np.int64)


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
        even = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
        values[i] = np.uint16(np.uint32(bits + np.uint32(0x7FFF) + even) >> np.uint32(16))

    return rounded


LOG2_E = np.float32(1.4426950408889634)
LN2_HIGH = np.float32(0.693359375)
LN2_LOW = np.float32(-2.12194440e-4)
COEFFICIENTS = tuple(np.float32(1 / c) for c in (1, 1, 2, 6, 24, 120, 720))


@njit(inline="always", **OPTIONS)
def exponential(x):
    """e^x in float32, relative error below 2e-7 (tests): x = n ln 2 + r, a Taylor polynomial of r, times 2^n by its bits.

    Below -87 the result stays e^-87, above 88 e^88; NaN and infinities give NaN.
    """
    clipped = min(max(x, np.float32(-87.0)), np.float32(88.0))
    n = np.floor(clipped * LOG2_E + np.float32(0.5))
    r = clipped - n * LN2_HIGH - n * LN2_LOW
    y = COEFFICIENTS[6]
    for k in (5, 4, 3, 2, 1, 0):
        y = y * r + COEFFICIENTS[k]
    return y * bits_float(np.uint32((np.int32(n) + np.int32(127)) << np.int32(23))) + (x - x)
