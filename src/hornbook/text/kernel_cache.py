"""Compiled kernels stay on disk, and are good while nothing that they were made of has changed.

numba asks whether a kernel's own file is the same. But what a kernel calls is compiled into it, from other files too,
and so are the values of constants: after a change there, old machine code would go on computing in its old way.
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import numba.core.config
import numpy as np
from numba.core import caching

_NOT_OURS = ("numba", "numpy", "llvmlite")
_OPTIONS = "compiled_with"
_CONSTANTS = (bool, int, float, str, bytes, tuple, np.generic)


def kept(compiler: Callable[..., Any], function: Callable[..., Any], **options: Any) -> Any:
    """The function compiled by `compiler(**options)`, and kept on disk where a folder for that can be written."""
    said = {name: sorted(value) if isinstance(value, set) else value for name, value in options.items()}
    vars(function)[_OPTIONS] = repr(sorted(said.items()))
    config: Any = numba.core.config
    before = config.CACHE_LOCATOR_CLASSES
    config.CACHE_LOCATOR_CLASSES = ",".join(f"{__name__}.{each.__name__}" for each in (InFolder, InTree, InHome))
    try:
        return compiler(cache=True, **options)(function)
    except RuntimeError:  # there is no such folder
        return compiler(**options)(function)
    finally:
        config.CACHE_LOCATOR_CLASSES = before


class MadeOf:
    """Equal to the digest of what a function is made of, and pickled as it.

    Found when a kernel is first loaded or stored: when it is defined, what it calls may stand further down.
    """

    def __init__(self, function: FunctionType) -> None:
        self._function = function

    @cached_property
    def digest(self) -> str:
        """Of the files of the function and of all that it calls, of the constants in use, and of its options."""
        files, constants = set[str](), {_OPTIONS: vars(self._function).get(_OPTIONS, "")}
        _gather(self._function, set(), files, constants)
        parts = [*sorted(map(_digest_of, files)), *(f"{name}={constants[name]}" for name in sorted(constants))]
        return _digest("\n".join(parts).encode())

    def __eq__(self, other: object) -> bool:
        return other == self.digest

    __hash__ = None  # pyright: ignore[reportAssignmentType]

    def __reduce__(self) -> tuple[Callable[[str], str], tuple[str]]:
        return str, (self.digest,)


def _gather(function: FunctionType, seen: set[FunctionType], files: set[str], constants: dict[str, str]) -> None:
    if function in seen or function.__module__.partition(".")[0] in _NOT_OURS:
        return
    seen.add(function)
    files.add(function.__code__.co_filename)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        called = getattr(value, "py_func", getattr(value, "_defn", value))  # of a kernel, of an intrinsic
        if isinstance(called, FunctionType):
            _gather(called, seen, files, constants)
        elif isinstance(value, _CONSTANTS):
            constants[f"{function.__module__}.{name}"] = repr(value)
        elif isinstance(value, np.ndarray):
            constants[f"{function.__module__}.{name}"] = f"{value.dtype} {value.shape} {_digest(value.tobytes())}"


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _names(each)


@cache
def _digest_of(file: str) -> str:
    return _digest(Path(file).read_bytes())


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class _Stamped:
    """Mixed into where numba keeps a kernel: asks for all that it is made of."""

    def __init__(self, function: FunctionType, file: str) -> None:
        super().__init__(function, file)  # pyright: ignore[reportCallIssue]
        self._made_of = MadeOf(function)

    def get_source_stamp(self) -> Any:
        """What is compared with that of the kernel on disk."""
        return self._made_of


class InFolder(_Stamped, caching.UserProvidedCacheLocator):
    """The folder that NUMBA_CACHE_DIR names."""


class InTree(_Stamped, caching.InTreeCacheLocator):
    """Beside the file."""


class InHome(_Stamped, caching.UserWideCacheLocator):
    """Where the user's caches are, if there is no writing beside the file."""
