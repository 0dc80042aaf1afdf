"""Where settings come from besides recipe files: the environment, and words of the command line.

A source is nested dicts whose leaves are `Given` (a value and its origin). They are merged and validated later, in
`hornbook.settings.resolve`.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hornbook.settings.renamed import present_path
from hornbook.settings.schema import Leaf, shapes_at
from hornbook.settings.toml import Path

COMMAND_LINE = "command line"
_BOOLEANS = {"true", "false", "yes", "no", "on", "off"}
_ASSIGNMENT = re.compile(r"""-{0,2}(?:[A-Za-z0-9_-]|\.|"[^"]*")+=""")
_NUMBER_LIKE = re.compile(r"-\.?[0-9]")
_KEY_PART = re.compile(r'("(?:[^"\\]|\\.)*")|([^."]+)')


@dataclass(frozen=True)
class Given:
    """A value that a source gives."""

    value: Any
    origin: str
    raw: bool = False
    """Whether it is text of the command line or the environment, which has no type yet."""
    inside: Mapping[Path, str] = field(default_factory=dict)
    """Origins of the values inside a list, by path from the list."""


@dataclass(frozen=True)
class Problem:
    """One fault of the configuration; `key` is "" for a fault of a whole file."""

    key: str
    text: str
    origin: str = ""
    hint: str = ""


@dataclass
class Source:
    """One source of settings, and the problems of reading it."""

    tree: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def environment_source(environ: Mapping[str, str]) -> Source:
    """`HORNBOOK_SET="a.b=1 c=2"`, which `HORNBOOK__A__B=1` overrides."""
    source = Source()
    for word in split_quoted(environ.get("HORNBOOK_SET", "")):
        key, equals, value = word.partition("=")
        if equals:
            _assign(source, key, value, "environment HORNBOOK_SET")
        else:
            source.problems.append(Problem(word, "write key=value in HORNBOOK_SET", "environment HORNBOOK_SET"))
    for name in sorted(environ):
        if name.startswith("HORNBOOK__"):
            key = name.removeprefix("HORNBOOK__").lower().replace("__", ".")
            _assign(source, key, environ[name], f"environment {name}")
    return source


def split_quoted(text: str, between: Callable[[str], bool] = str.isspace) -> list[str]:
    """Words between spaces, or other separators, that are outside of quotes and brackets, which stay."""
    words, word, quote, depth = [], "", "", 0  # the quote and the number of brackets that are open
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[{":
            depth += 1
        elif character in "]}":
            depth -= 1
        if between(character) and not quote and depth <= 0:
            words.append(word)
            word = ""
        else:
            word += character
    return [word for word in [*words, word] if word]


def split_words(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """(positional words, overrides written `key=value`) of the free words of a command line.

    `--a.b v`, `--a.b=v` and `a.b=v` are equal; `--flag` and `--no-flag` set booleans. A key without a value is returned
    without `=`, for `command_line_source` to report.
    """
    positionals: list[str] = []
    overrides: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if _ASSIGNMENT.match(word):
            overrides.append(word.lstrip("-"))
        elif word.startswith("-") and len(word) > 1 and not _NUMBER_LIKE.match(word):
            overrides.append(_option(word.lstrip("-"), waiting))
        else:
            positionals.append(word)
    return positionals, overrides


def _option(key: str, waiting: list[str]) -> str:
    """`key=value` of the option `--key`; the value may be the next waiting word, which is taken."""
    if is_boolean(key):
        return f"{key}={waiting.pop(0) if waiting and waiting[0].lower() in _BOOLEANS else 'true'}"
    head, _, last = key.rpartition(".")
    for positive in (key[3:], f"{head}.{last[3:]}" if head else last[3:]):
        if re.search(r"(^|\.)no[-_]", key) and is_boolean(positive):
            return f"{positive}=false"
    if waiting and (not waiting[0].startswith("--") or waiting[0] == "--"):
        return f"{key}={waiting.pop(0)}"
    return key


def is_boolean(key: str) -> bool:
    """Whether the dotted key names a boolean setting."""
    shapes = shapes_at(present_path(split_key(key)))
    return any(isinstance(shape, Leaf) and shape.annotation is bool for shape in shapes)


def command_line_source(overrides: Sequence[str]) -> Source:
    """Overrides as the words stand on the command line, or as `split_words` returned them."""
    source = Source()
    positionals, assignments = split_words(overrides)
    for word in positionals:
        text = "not a setting: write --section.key value or section.key=value"
        source.problems.append(Problem(word, text, COMMAND_LINE))
    for word in assignments:
        key, equals, value = word.partition("=")
        if equals:
            _assign(source, key, value, COMMAND_LINE)
        else:
            source.problems.append(Problem(key, "needs a value", COMMAND_LINE, _missing_hint(key)))
    return source


def _missing_hint(key: str) -> str:
    return f"write --{key} VALUE" if shapes_at(present_path(split_key(key))) else "and there is no such setting"


def split_key(key: str) -> tuple[str, ...]:
    """Parts of a dotted key; a part in double quotes may contain dots."""
    return tuple(match[2] or str(parse_toml(match[1] or "")) for match in _KEY_PART.finditer(key))


def _assign(source: Source, key: str, text: str, origin: str) -> None:
    """Set raw text at the dotted key; a later word overrides an earlier one."""
    path = split_key(key)
    if not path:
        source.problems.append(Problem(key, "write key=value", origin))
        return
    if any("\ud800" <= character <= "\udfff" for character in key + text):  # how Python shows bytes that are not UTF-8
        source.problems.append(Problem(ascii(key)[1:-1], f"is not UTF-8 text: {text!a}", origin))
        return
    node: dict[str, Any] = source.tree
    for part in path[:-1]:
        below: Any = node.setdefault(part, {})
        if isinstance(below, Given):  # `optim.schedule=wsd optim.schedule.floor=0`: a bare word is the kind
            below = {"kind": below}
            node[part] = below
        node = below
    _put(node, path[-1], text, origin)


def _put(node: dict[str, Any], name: str, text: str, origin: str) -> None:
    table = parse_toml(text) if text.startswith("{") else None
    present = node.get(name)
    if isinstance(table, dict):
        node[name] = (present if isinstance(present, dict) else {}) | give_all(table, origin)
    elif isinstance(present, dict):
        present["kind"] = Given(text, origin, raw=True)
    else:
        node[name] = Given(text, origin, raw=True)


def give_all(node: dict[str, Any], origin: str) -> dict[str, Any]:
    """A tree of a source, with one origin for all values."""
    return {
        key: give_all(value, origin) if isinstance(value, dict) else Given(value, origin) for key, value in node.items()
    }


def parse_toml(text: str) -> Any:
    """The TOML value that `text` is, or None."""
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else None
    except (tomllib.TOMLDecodeError, RecursionError):
        return None
