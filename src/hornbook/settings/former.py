"""Importing a user's module: a part of a model, a step of the refinery."""

import importlib
import tomllib
from pathlib import Path
from types import ModuleType


def import_outside(module: str) -> ModuleType:
    """A module of the user's, by its import path.

    Raises whatever the module raises; ImportError with the new name where it imports a module of ours by a former one.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        former = (error.name or "").removeprefix("hornbook.")
        if (new := moved_modules().get(former)) is None:
            raise
        text = f"hornbook.{former} is now hornbook.{new}: import that in {module}"
        raise ImportError(text, name=error.name) from error


def moved_modules() -> dict[str, str]:
    """Former name -> name, both below `hornbook`."""
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
