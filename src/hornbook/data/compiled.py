"""How the kernels of this room are compiled, and how they reach memory that numpy has mapped."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import types
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compile at the first call, without the interpreter's lock; kept on disk where a folder for it can be written."""
    try:
        return cast(Function, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # neither the package's folder nor the home directory can be written
        return cast(Function, numba.njit(nogil=True)(function))


def _pointer(_context: Any, address: Any) -> Any:
    """In kernels: an address (uint64) as a pointer that `numba.carray` accepts."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(address), generate


def inlined(function: Function) -> Function:
    """Compile into each caller: a call by value would copy and count references to every array of its arguments."""
    return cast(Function, numba.njit(inline="always")(function))


pointer: Any = intrinsic(_pointer)
