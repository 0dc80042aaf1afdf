"""How kernels are compiled, and what they share: SplitMix64, binary search, eight bytes at once, pointers."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from hornbook.kernels.cache import kept_function

Function = TypeVar("Function", bound=Callable[..., Any])

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
MIX_FIRST, MIX_SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
"""The increment and the multipliers of SplitMix64 (Steele et al. 2014)."""


def compiled(function: Function) -> Function:
    """Compile at the first call, without the interpreter's lock."""
    return cast(Function, kept_function(function, nogil=True))


def inlined(function: Function) -> Function:
    """Compile into each caller: a call by value would copy and count references to every array of its arguments."""
    return cast(Function, numba.njit(inline="always")(function))


@compiled
def mix(value):
    """Scramble 64 bits (a uint64), bijectively: the finaliser of SplitMix64."""
    value = (value ^ (value >> np.uint64(30))) * MIX_FIRST
    value = (value ^ (value >> np.uint64(27))) * MIX_SECOND
    return value ^ (value >> np.uint64(31))


@inlined
def count_up_to(values, bound):
    """How many of some ascending values are at most `bound`: `np.searchsorted(values, bound, side="right")`.

    Binary search in a few instructions, where numba compiles a second of code for `np.searchsorted`.
    """
    low, high = 0, values.size
    while low < high:
        middle = (low + high) // 2
        if values[middle] <= bound:
            low = middle + 1
        else:
            high = middle
    return low


def _load64(_context: Any, data: Any, offset: Any) -> Any:
    """In kernels: bytes offset..offset+7 of a uint8 array as a uint64; the caller knows that they are inside."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        address = builder.gep(array.data, [arguments[1]])
        return builder.load(builder.bitcast(address, ir.IntType(64).as_pointer()), align=1)

    return types.uint64(data, offset), generate


def _zeros_below(_context: Any, value: Any) -> Any:
    """In kernels: how many zeros stand below the lowest one of a uint64, which is not 0."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(value), generate


def _borrowed(_context: Any, array: Any) -> Any:
    """In kernels: an array that is not counted, for hot loops whose array outlives them (it is an argument)."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(signature.args[0])(context, builder, arguments[0])
        view.meminfo = ir.Constant(view.meminfo.type, None)
        view.parent = ir.Constant(view.parent.type, None)
        return view._getvalue()

    return array(array), generate


def _pointer(_context: Any, address: Any) -> Any:
    """In kernels: an address (uint64) as a pointer that `numba.carray` accepts."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


load64: Any = intrinsic(_load64)
pointer: Any = intrinsic(_pointer)
zeros_below: Any = intrinsic(_zeros_below)
borrowed: Any = intrinsic(_borrowed)
