"""Importing a user's module: a part of a model, a step of the refinery. Former names of ours are answered."""

import functools
import importlib
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from hornbook.errors import UsageError

PACKAGE = "hornbook."
_NO_NAME = re.compile(r"cannot import name '(\w+)'")


class FormerName(UsageError, ImportError):
    """A user's module asks for a module or a name of ours that is called otherwise now."""


def import_outside(module: str) -> ModuleType:
    """A module of the user's, by its import path. Raises whatever the module raises, and as `answer_former_names`."""
    with answer_former_names(module):
        return importlib.import_module(module)


@contextmanager
def answer_former_names(module: str) -> Iterator[None]:
    """For code of a user's `module`: FormerName with the new name where it asks for a former one of ours."""
    try:
        yield
    except (ImportError, AttributeError) as error:
        if (answer := _answer(error)) is None:
            raise
        raise FormerName(f"{answer}: import that in {module}") from error


def refuse_former_attribute(owner: object, attribute: str) -> NoReturn:
    """For `__getattr__` of a class that users' modules read: UsageError with the new name, else AttributeError."""
    name = f"{type(owner).__module__.removeprefix(PACKAGE)}:{type(owner).__qualname__}.{attribute}"
    if (new := moved_names().get(name)) is not None:
        raise UsageError(f"{name.partition(':')[2]} is now {new.partition(':')[2]}")
    raise AttributeError(f"{type(owner).__qualname__!r} object has no attribute {attribute!r}")


@functools.cache
def moved_names() -> dict[str, str]:
    """Former name -> name, both below `hornbook`: of a module, or `module:name` of something in it."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


def _answer(error: ImportError | AttributeError) -> str | None:
    """The new name of the module or of the name in a module that was not found; None where there is none."""
    module, name = _not_found(error)
    if not module.startswith(PACKAGE):
        return None
    former, moved = module.removeprefix(PACKAGE), moved_names()
    new = moved.get(former, former)
    if (there := moved.get(f"{new}:{name}")) is not None:
        return f"{module}.{name} is now {PACKAGE}{there.replace(':', '.')}"
    return None if new == former else f"{module} is now {PACKAGE}{new}"


def _not_found(error: ImportError | AttributeError) -> tuple[str, str]:
    """(module, name in it or "") that an error is about; ("", "") where it is about none."""
    if isinstance(error, AttributeError):
        return (error.obj.__name__, error.name or "") if isinstance(error.obj, ModuleType) else ("", "")
    found = _NO_NAME.match(str(error))
    return error.name or "", found[1] if found else ""
