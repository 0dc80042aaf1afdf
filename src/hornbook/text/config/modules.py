"""A step or reader of the user's own: its function, and the files of Python that it consists of."""

import ast
import importlib
import os
import site
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hornbook.errors import UsageError

IMPORT_PATH = r"^[\w.]+:\w+$"


def load_function(path: str, what: str = "step") -> Callable[..., Any]:
    """The function at `package.module:function`; modules may lie in the current folder. `what`: its name in errors.

    Raises UsageError.
    """
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise UsageError(f"{what} {path!r} cannot be imported: {error}") from error
    if not callable(function):
        raise UsageError(f"{what} {path!r} is not a function")
    return function


def code_of(module: str) -> list[Path]:
    """The file of a module, then those that it imports, over any number of imports; [] where it cannot be found.

    Followed are import statements, wherever they stand, into the folder of `sys.path` that the module was found in;
    where that is a folder of installed packages, into the module's own package. Imports by name (importlib) are not.
    """
    for folder in (*map(Path, sys.path), Path()):
        if _files(folder, module):
            return _followed(folder, module)
    return []


def _followed(folder: Path, module: str) -> list[Path]:
    package = module.partition(".")[0] if _is_installed(folder) else ""
    found: dict[Path, str] = {path: name for name in _with_parents(module) for path in _files(folder, name)}
    left = list(found)
    while left:
        path = left.pop()
        for name in _imported(path, found[path]):
            new = {each: name for each in _files(folder, name) if each not in found}
            if not package or name.partition(".")[0] == package:
                found |= new
                left += new
    (main,) = _files(folder, module)
    return [main, *sorted(found.keys() - {main})]


def _files(folder: Path, module: str) -> list[Path]:
    """The file of a module, if it is there: a package is imported before a module of its name."""
    base = folder / module.replace(".", "/")
    return [path for path in (base / "__init__.py", base.with_name(f"{base.name}.py")) if path.is_file()][:1]


def _with_parents(module: str) -> list[str]:
    """`a.b.c` with the packages `a` and `a.b`, which are imported before it."""
    parts = module.split(".")
    return [".".join(parts[: count + 1]) for count in range(len(parts))]


def _imported(path: Path, module: str) -> Iterator[str]:
    """Names that its import statements may mean: of `from a import b` both `a` and `a.b`."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # it says so itself when it is imported
        return
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            base = ".".join(filter(None, [*parents, node.module or ""]))
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        yield from (each for name in names if name.strip(".") for each in _with_parents(name.strip(".")))


def _is_installed(folder: Path) -> bool:
    """Whether packages of others lie there: Python's own, or those that pip installs."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [*map(sysconfig.get_path, kinds), *site.getsitepackages(), site.getusersitepackages()]
    return folder.resolve() in {Path(place).resolve() for place in places}
