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

_NOT_OURS = ("numba", "numpy", "llvmlite")
_OPTIONS = "compiled_with"


def kept(compiler: Callable[..., Any], function: Callable[..., Any], **options: Any) -> Any:
    """The function compiled by `compiler(**options)` of numba, and kept on disk where a folder can be written."""
    import numba.core.config

    said = {name: sorted(value) if isinstance(value, set) else value for name, value in options.items()}
    vars(function)[_OPTIONS] = repr(sorted(said.items()))
    config: Any = numba.core.config
    before = config.CACHE_LOCATOR_CLASSES
    config.CACHE_LOCATOR_CLASSES = f"{__name__}.{Place.__name__}"
    try:
        return compiler(cache=True, **options)(function)
    except RuntimeError:  # there is no such folder
        return compiler(**options)(function)
    finally:
        config.CACHE_LOCATOR_CLASSES = before


class Place:
    """Where numba keeps a kernel (a "cache locator"): wherever it would by itself, but under our stamp."""

    def __init__(self, chosen: Any, function: FunctionType) -> None:
        self._chosen, self._made_of = chosen, MadeOf(function)

    @classmethod
    def from_function(cls, function: FunctionType, file: str) -> "Place | None":
        """The folder that NUMBA_CACHE_DIR names, that beside the file, the user's; None where none can be written."""
        from numba.core.caching import InTreeCacheLocator, UserProvidedCacheLocator, UserWideCacheLocator

        for each in (UserProvidedCacheLocator, InTreeCacheLocator, UserWideCacheLocator):
            chosen = each.from_function(function, file)
            if chosen is not None:
                return cls(chosen, function)
        return None

    def get_source_stamp(self) -> "MadeOf":
        """What is compared with the stamp of the kernel on disk."""
        return self._made_of

    def __getattr__(self, name: str) -> Any:
        return getattr(self._chosen, name)


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

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Callable[[str], str], tuple[str]]:
        return str, (self.digest,)


def _gather(function: FunctionType, seen: set[FunctionType], files: set[str], constants: dict[str, str]) -> None:
    import numpy as np

    if function in seen or function.__module__.partition(".")[0] in _NOT_OURS:
        return
    seen.add(function)
    files.add(function.__code__.co_filename)
    for name in _names(function.__code__):
        value = function.__globals__.get(name)
        called = getattr(value, "py_func", getattr(value, "_defn", value))  # of a kernel, of an intrinsic
        if isinstance(called, FunctionType):
            _gather(called, seen, files, constants)
        elif isinstance(value, bool | int | float | str | bytes | tuple | np.generic):
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
