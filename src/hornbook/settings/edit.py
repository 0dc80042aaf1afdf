"""Changing values of a recipe file: every other byte of it stays, comments and order too."""

import re
from typing import Any

from hornbook.settings.toml import Path, header_ends, quoted, value_spans


def with_values(text: str, values: dict[Path, Any]) -> str:
    """A valid TOML text with other values: numbers, booleans, strings, or dicts of them.

    A key that is there gets the value in its place; another one stands below the header of its table, or in a table at
    the end. Below a key whose value is not a table nothing can stand: give the value of that key.
    """
    for path, value in reversed(values.items()):  # each new one stands above those before it
        text = _with_value(text, path, value)
    return text


def _with_value(text: str, path: Path, value: Any) -> str:
    if (span := value_spans(text).get(path)) is not None:
        return text[: span[0]] + literal(value) + text[span[1] :]
    headers = header_ends(text)
    if path in headers and isinstance(value, dict):  # a table of its own: its keys one by one
        for name, each in value.items():
            text = _with_value(text, (*path, name), each)
        return text
    for depth in range(len(path) - 1, 0, -1):
        if (end := headers.get(path[:depth])) is not None:
            line = "\n" + ".".join(map(str, path[depth:])) + f" = {literal(value)}"
            return text[:end] + line + ("\r" if text[end - 1] == "\r" else "") + text[end:]
    start = "" if not text or text.endswith("\n") else "\n"
    table = f"{start}\n[{'.'.join(map(str, path[:-1]))}]\n{path[-1]} = {literal(value)}\n"
    return text + (table.replace("\n", "\r\n") if "\r\n" in text else table)


def literal(value: Any) -> str:
    """A value as TOML writes it on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return quoted(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{name} = {literal(each)}" for name, each in value.items()) + " }"
    return re.sub(r"^(\d{7,})$", lambda match: f"{int(match[1]):_}", str(value))
