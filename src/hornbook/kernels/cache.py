"""Keep compiled kernels on disk, valid while nothing that they were made of has changed.

numba asks whether a kernel's own file is the same. But what a kernel calls is compiled into it, from other files too,
and so are the values of constants: after a change there, old machine code would still run.
So a kernel's name is a digest of all it is made of (code, all that it calls, constants, options, signature), for this
CPU and these versions.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from hornbook.kernels import folder as kernel_folder

_NOT_OURS = ("numba", "numpy", "llvmlite")
COMPILED: dict[str, float] = {}
"""Names of the kernels that were compiled in this process, and the seconds that each took, what it calls included."""
listeners: list[Callable[[str], None]] = []
"""Called with the name of a kernel that has been compiled here."""


def kept_function(function: Callable[..., Any], **options: Any) -> Any:
    """`numba.njit(**options)` of a function, kept on disk where a folder can be written."""
    from numba import njit

    made: Any = njit(**options)(function)
    made._cache = KernelCache(function, options)
    return made


def kept_callback(function: Callable[..., Any], signature: Any, **options: Any) -> Any:
    """`numba.cfunc(signature, **options)` of a function: compiled now, or loaded from disk."""
    from numba.core import sigutils
    from numba.core.ccallback import CFunc

    made: Any = CFunc(function, sigutils.normalize_signature(signature), locals={}, options=options)
    made._cache = KernelCache(function, options)
    made.compile()
    return made


def is_ready(*made: Any) -> bool:
    """Whether kernels (`kept_function`) are compiled, in this process or on disk, for whatever signature."""
    return all(each.signatures or _is_stored(each._cache.stem) for each in made)


def is_kept(function: Callable[..., Any], options: dict[str, Any]) -> bool:
    """Whether a function is compiled on disk with such options, for whatever signature."""
    return _is_stored(KernelCache(function, options).stem)


def _is_stored(stem: str) -> bool:
    return any(name.startswith(stem) for name in kernel_folder.names(_cpu()))


class KernelCache:
    """The cache that numba asks for one function's machine code."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function, self._options = function, options
        self._begun = dict[str, float]()

    @cached_property
    def stem(self) -> str:
        """The common beginning of the names of all its signatures."""
        function = f"{self._function.__module__}.{self._function.__qualname__}".replace("<locals>.", "")
        return f"{_cpu()}/{function}-{_digest_of_code(self._function, self._options)}-"

    @property
    def cache_path(self) -> str:
        """The preferred folder."""
        return str(next(kernel_folder.folders(), ""))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """The code for a signature, or None."""
        from numba.core.compiler import CompileResult
        from numba.core.runtime.nrt import rtsys
        from numba.core.serialize import loads

        rtsys.initialize(target_context)  # functions that kernels call; `refresh` also loads all that a compiler knows
        name = self._name(sig)
        data = kernel_folder.read(name)
        if data is not None:
            return CompileResult._rebuild(target_context, *loads(data))
        self._begun[name] = time.monotonic()
        return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled because `load_overload` gave None; code that holds addresses cannot be kept."""
        from numba.core.serialize import dumps

        name = self._name(sig)
        COMPILED[name] = time.monotonic() - self._begun.pop(name, time.monotonic())
        if not data.lifted and not data.library.has_dynamic_globals:
            kernel_folder.write(name, dumps(data._reduce()))
        for tell in listeners:
            tell(name)

    def flush(self) -> None:
        """Nothing: the code under a name never changes."""

    def _name(self, signature: Any) -> str:
        return f"{self.stem}{_digest_of_signature(signature)}"


def _cpu() -> str:
    """Folder of this CPU, its features, and the versions of what compiles."""
    import llvmlite
    import numba
    from numba.core import registry

    context: Any = registry.cpu_target.target_context
    target = context.codegen().magic_tuple()
    facts = sys.version, numba.__version__, llvmlite.__version__, *target
    return f"{target[1]}-{hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()}"


def _digest_of_code(function: Callable[..., Any], options: dict[str, Any]) -> str:
    """Of the files of the function and of all that it calls, of the constants in use, and of numba's options.

    Call it when a kernel is first loaded or stored: when it is defined, what it calls may not be defined yet.
    """
    files, constants = set[str](), dict[str, str]()
    _gather(function, set(), files, constants)
    said = sorted((name, sorted(value) if isinstance(value, set) else value) for name, value in options.items())
    parts = [*sorted(map(_digest_of_file, files)), *(f"{name}={constants[name]}" for name in sorted(constants))]
    return _digest("\n".join([*parts, repr(said)]).encode())


def _digest_of_signature(signature: Any) -> str:
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
