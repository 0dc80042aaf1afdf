"""Reading recipe files, shipped or by path, and the chain of recipes that they extend."""

import difflib
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hornbook.settings.sources import Given, Problem, Source
from hornbook.settings.toml import key_lines


@cache
def shipped_recipes() -> dict[str, str]:
    """Text of each recipe that comes with hornbook, by name."""
    folder = files("hornbook") / "recipes"
    found = {item.name: item for item in folder.iterdir() if item.name.endswith(".toml")}
    return {name.removesuffix(".toml"): found[name].read_text(encoding="utf-8") for name in sorted(found)}


def read_recipe(target: str) -> list[Source]:
    """Sources of a recipe and of the recipes that it extends, the last extended first.

    `target` is the name of a shipped recipe, a file, or a folder that holds `recipe.toml` (a run directory).
    """
    sources: list[Source] = []
    chain: list[str] = []
    wanted: tuple[str, Path | None, str] | None = (target, None, "")
    while wanted is not None:
        name, folder, origin = wanted
        source = Source()
        sources.insert(0, source)
        located = _locate(name, folder)
        if isinstance(located, Problem):
            source.problems.append(Problem(located.key, located.text, origin, located.hint))
            break
        identity, label, text = located
        if identity in chain:
            cycle = " -> ".join([*chain[chain.index(identity) :], identity])
            source.problems.append(Problem("extends", f"the recipes extend each other in a circle: {cycle}", origin))
            break
        chain.append(identity)
        wanted = _read_source(source, identity, label, text)
    return sources


def _locate(name: str, folder: Path | None) -> tuple[str, str, str] | Problem:
    """(identity, label in messages, text) of a recipe. folder: of the file that extends it; None at the start."""
    if name in shipped_recipes():
        return name, f"recipes/{name}.toml", shipped_recipes()[name]
    path = Path(name) if folder is None else folder / name
    try:
        return _read_file(name, path)
    except UnicodeDecodeError as error:
        return Problem("", f"{path} is not UTF-8 text (byte {error.start})")
    except OSError as error:
        return Problem("", f"cannot read {path}: {error.strerror}")


def _read_file(name: str, path: Path) -> tuple[str, str, str] | Problem:
    if path.is_dir():
        path = path / "recipe.toml"
        if not path.exists():
            return Problem("", f"{name} is a folder without a recipe.toml: give a recipe or a run directory")
    if not path.exists():
        close = difflib.get_close_matches(Path(name).stem, shipped_recipes(), n=1, cutoff=0.5)
        if name.endswith(".toml") or "/" in name:
            copied = "`hornbook recipes copy RECIPE` makes one from a shipped recipe"
            return Problem("", f"there is no file {path}", hint=copied)
        hint = f"did you mean {close[0]}?" if close else "`hornbook recipes ls` lists the shipped ones"
        return Problem("", f"there is no recipe {name}: no such file, and no shipped recipe of that name", hint=hint)
    return str(path.resolve()), str(path), path.read_text(encoding="utf-8-sig")


def _read_source(source: Source, identity: str, label: str, text: str) -> tuple[str, Path | None, str] | None:
    """Fill the source from the text; returns (name, folder of this file, origin) of the recipe that it extends."""
    try:
        document = tomllib.loads(text)
    except RecursionError:
        source.problems.append(Problem("", "nested too deeply for a recipe", label))
        return None
    except ValueError as error:  # TOMLDecodeError is one; a number of thousands of digits is another
        place = re.search(r"line (\d+)", str(error))
        line = int(place[1]) if place else text.count("\n") + 1
        source.problems.append(Problem("", f"not valid TOML: {error}", f"{label}:{line}"))
        return None
    lines = key_lines(text)
    extends = document.pop("extends", None)
    source.tree = _give(document, (), lines, label)
    if identity not in shipped_recipes():  # not the name of the recipe that it extends
        source.tree.setdefault("name", Given(_own_name(Path(identity)), label))
    if extends is None:
        return None
    origin = f"{label}:{lines['extends',]}"
    if not isinstance(extends, str):
        source.problems.append(Problem("extends", "must be the name of a shipped recipe or a path, as text", origin))
        return None
    folder = Path() if identity in shipped_recipes() else Path(label).parent
    return extends, folder, origin


def _own_name(path: Path) -> str:
    """The name of a recipe that gives itself none: of its file, or of the folder of a `recipe.toml`."""
    return path.parent.name if path.name == "recipe.toml" else path.stem


def _give(node: dict[str, Any], path: tuple[str, ...], lines: Mapping[Any, int], label: str) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for key, value in node.items():
        here = (*path, key)
        if isinstance(value, dict):
            given[key] = _give(value, here, lines, label)
        else:
            inside = {at[len(here) :]: f"{label}:{line}" for at, line in lines.items() if at[: len(here)] == here}
            given[key] = Given(value, f"{label}:{lines[here]}", inside=inside if isinstance(value, list) else {})
    return given
