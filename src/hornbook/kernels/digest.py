"""Digests of what a compiled kernel is made of: its code, all that it calls, constants, options, signature."""

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

_NOT_OURS = ("numba", "numpy", "llvmlite")


def digest_of_code(function: Callable[..., Any], options: dict[str, Any]) -> str:
    """Of the files of the function and of all that it calls, of the constants in use, and of numba's options.

    Call it when a kernel is first loaded or stored: when it is defined, what it calls may not be defined yet.
    """
    files, constants = set[str](), dict[str, str]()
    _gather(function, set(), files, constants)
    said = sorted((name, sorted(value) if isinstance(value, set) else value) for name, value in options.items())
    parts = [*sorted(map(_digest_of_file, files)), *(f"{name}={constants[name]}" for name in sorted(constants))]
    return _digest("\n".join([*parts, repr(said)]).encode())


def digest_of_signature(signature: Any) -> str:
    """Of the types of a kernel's arguments: a tuple of numba's types, or numba's signature."""
    kinds = signature if isinstance(signature, tuple) else (*signature.args, signature.return_type)
    return _digest("\n".join(map(_spelled, kinds)).encode())


def _spelled(kind: Any) -> str:
    """A type; of a named tuple also the names of its fields, which kernels read."""
    instance = getattr(kind, "instance_class", None)
    return str(kind) if instance is None else f"{kind} {instance.__module__}.{instance.__qualname__} {instance._fields}"


def _gather(function: Any, seen: set[Any], files: set[str], constants: dict[str, str]) -> None:
    import numpy as np

    if function in seen or function.__module__.partition(".")[0] in _NOT_OURS:
        return
    seen.add(function)
    files.add(function.__code__.co_filename)
    for name, value in _named(function):
        called = getattr(value, "py_func", getattr(value, "_defn", value))  # of a kernel, of an intrinsic
        qualified = f"{function.__module__}.{function.__qualname__}.{name}"
        if isinstance(called, FunctionType):
            constants[qualified] = f"{called.__module__}.{called.__qualname__}"
            _gather(called, seen, files, constants)
        elif isinstance(value, bool | int | float | str | bytes | tuple | np.generic):
            constants[qualified] = repr(value)
        elif isinstance(value, np.ndarray):
            constants[qualified] = f"{value.dtype} {value.shape} {_digest(value.tobytes())}"


def _named(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Every global and every variable of an enclosing function that a function names."""
    for name in _names(function.__code__):
        yield name, function.__globals__.get(name)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell.cell_contents


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


@cache
def _digest_of_file(file: str) -> str:
    return _digest(Path(file).read_bytes())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
