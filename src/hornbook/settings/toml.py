"""Where each key and string of a TOML file stands, which the standard parser does not say, and how keys are written.

The file has been read by `tomllib` before, so that this scanner may trust its syntax.
"""

import json
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Path = tuple[str | int, ...]
"""Keys from the root to a node; list items are integers."""

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]+")


def dotted(path: Path) -> str:
    """A path as the dotted key that names it, as TOML writes keys; parts with other characters are quoted."""
    return ".".join(part if _BARE_KEY.fullmatch(part) else quoted(part) for part in map(str, path))


def set_at(tree: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set a value at the path of its keys; tables that are missing are made."""
    for part in path[:-1]:
        tree = tree.setdefault(part, {})
    tree[path[-1]] = value


def quoted(text: str) -> str:
    """Text as a basic string of TOML, which is a string of JSON but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True)
class Token:
    """One part of a key, or a string that is a value, at `text[start:end]`."""

    path: Path
    """Of the table or value that the key part names; of the value."""
    start: int
    end: int
    value: str | None = None
    """Of a string; None for a part of a key."""


def key_lines(text: str) -> dict[Path, int]:
    """Line (from 1) of every key and list item of a valid TOML text, by path."""
    return _Scanner(text).lines


def tokens(text: str) -> list[Token]:
    """Every part of a key and every string of a valid TOML text, in order."""
    return _Scanner(text).tokens


def value_spans(text: str) -> dict[Path, tuple[int, int]]:
    """Where the value of every key of a valid TOML text stands."""
    return _Scanner(text).values


def header_ends(text: str) -> dict[Path, int]:
    """End of the line of every table's header, by path; those of arrays are not among them."""
    return _Scanner(text).headers


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.values: dict[Path, tuple[int, int]] = {}
        self.headers: dict[Path, int] = {}
        self.tokens: list[Token] = []
        self._counts: dict[Path, int] = {}
        self._scan()

    def _scan(self) -> None:
        table: Path = ()
        self._skip()
        while self.at < len(self.text):
            if self._take("[["):
                table = self._new_item(self._key())
                self._take("]]")
            elif self._take("["):
                table = self._resolve(self._key())
                self._note(table)
                self._take("]")
                self.headers[table] = (self.text + "\n").index("\n", self.at)
            else:
                self._pair(table)
            self._skip()

    def _skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None
        self.at = match.end()

    def _take(self, mark: str) -> bool:
        self._skip()
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True

    def _note(self, path: Path) -> None:
        self.lines.setdefault(path, self.text.count("\n", 0, self.at) + 1)

    def _key(self) -> list[re.Match[str]]:
        parts: list[re.Match[str]] = []
        while not parts or self._take("."):
            self._skip()
            match = _STRING.match(self.text, self.at) or _BARE_KEY.match(self.text, self.at)
            assert match is not None, "the text has been read by tomllib"
            self.at = match.end()
            parts.append(match)
        return parts

    def _below(self, path: Path, part: re.Match[str]) -> Path:
        """The path that a part of a key leads to."""
        path = (*path, _string(part[0]) if part[0][0] in "\"'" else part[0])
        self.tokens.append(Token(path, part.start(), part.end()))
        return path

    def _resolve(self, key: list[re.Match[str]]) -> Path:
        """A table below an array of tables belongs to the array's last item."""
        path: Path = ()
        for part in key:
            path = self._below(path, part)
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
        return path

    def _new_item(self, key: list[re.Match[str]]) -> Path:
        array = self._below(self._resolve(key[:-1]), key[-1])
        self._note(array)
        self._counts[array] = self._counts.get(array, 0) + 1
        item = (*array, self._counts[array] - 1)
        self._note(item)
        return item

    def _pair(self, table: Path) -> None:
        path = table
        for part in self._key():
            path = self._below(path, part)
            self._note(path)
        self._take("=")
        self._skip()
        start = self.at
        self._value(path)
        self.values[path] = start, start + len(self.text[start : self.at].rstrip())

    def _value(self, path: Path) -> None:
        self._skip()
        string = _STRING.match(self.text, self.at)
        if string is not None:
            self.at = string.end()
            self.tokens.append(Token(path, string.start(), string.end(), _string(string[0])))
        elif self._take("["):
            index = 0
            while not self._take("]"):
                self._note((*path, index))
                self._value((*path, index))
                self._take(",")
                index += 1
        elif self._take("{"):
            while not self._take("}"):
                self._pair(path)
                self._take(",")
        else:
            scalar = _SCALAR.match(self.text, self.at)
            assert scalar is not None, "the text has been read by tomllib"
            self.at = scalar.end()


def _string(text: str) -> str:
    return tomllib.loads(f"x = {text}")["x"]
