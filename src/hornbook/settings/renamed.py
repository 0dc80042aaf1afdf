"""Settings and values that were renamed: a former one keeps working.

In recipes, the environment and the command line a line says its present name; files of runs and models are read
without one. `renamed.toml` is the table.
"""

import tomllib
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path as File
from typing import Any

from hornbook.settings.toml import Path, dotted, quoted, tokens

Note = Callable[[Path, str], None]
"""Told the former path of a setting, and a sentence with its present name."""


@cache
def renamed_settings() -> dict[str, Any]:
    """Former dotted path -> present last part; dotted path -> former value -> present value. `*` is any one part."""
    return tomllib.loads(File(__file__).with_suffix(".toml").read_text(encoding="utf-8"))


@lru_cache(4096)
def entry_of(path: Path, kind: type) -> Any:
    """What the table has for a path, of one kind of entry: str for names, dict for values."""
    for pattern, entry in renamed_settings().items():
        if (
            isinstance(entry, kind)
            and pattern.count(".") + 1 == len(path)
            and all(want in ("*", have) for want, have in zip(pattern.split("."), path, strict=True))
        ):
            return entry
    return None


def present_name(path: Path) -> str | None:
    """The present name of the setting at a path whose last part is a former name; None where it is not one."""
    *above, last = path
    return entry_of((*above, last.replace("-", "_")), str) if isinstance(last, str) else None


def present_path(path: Path) -> Path:
    """The path with present names for former ones."""
    present: Path = ()
    for part in path:
        present = (*present, present_name((*present, part)) or part)
    return present


def with_present_names(tree: Any, path: Path = (), note: Note = lambda _path, _text: None) -> Any:
    """Plain values, as parsed from TOML or JSON, with present names and values for former ones.

    path: where the tree belongs in a recipe. A former name beside the present one stays, to be refused as unknown.
    """
    if isinstance(tree, list):
        return [with_present_names(item, (*path, number), note) for number, item in enumerate(tree)]
    if not isinstance(tree, dict):
        return _present_value(path, tree, note)
    present: dict[str, Any] = {}
    for key, value in tree.items():
        name = present_name((*path, key))
        if name is None or name in tree:
            name = key
        else:
            note((*path, key), renamed((*path, key), name))
        present[name] = with_present_names(value, (*path, name), note)
    return present


def _present_value(path: Path, value: Any, note: Note) -> Any:
    """The present value; a bare text may be the `kind` of a section."""
    values = entry_of(path, dict) or entry_of((*path, "kind"), dict) or {}
    if not isinstance(value, str) or value not in values:
        return value
    note(path, f"{dotted(path)}: {quoted(value)} is now {quoted(values[value])}")
    return values[value]


def mend(text: str) -> tuple[str, list[tuple[int, str]]]:
    """A valid recipe with present names for former ones, all else as it was; (line, sentence) of each change."""
    changes: list[tuple[int, str]] = []
    pieces: list[str] = []
    done = 0
    found = tokens(text)
    taken = {token.path for token in found}

    def note(_: Path, sentence: str) -> None:
        changes.append((text.count("\n", 0, token.start) + 1, sentence))

    for token in found:
        path, new = (*present_path(token.path[:-1]), token.path[-1]), None
        if token.value is not None:
            present = _present_value(path, token.value, note)
            new = quoted(present) if present != token.value else None
        elif (name := present_name(path)) is not None and (*token.path[:-1], name) not in taken:
            new = name
            note(path, renamed(path, name))
        if new is not None:
            pieces += [text[done : token.start], new]
            done = token.end
    return "".join([*pieces, text[done:]]), changes


def renamed(path: Path, name: str) -> str:
    """The sentence that says what the setting at a path, whose last part is a former name, is called now."""
    return f"{dotted(path)} is now {dotted((*path[:-1], name))}"
