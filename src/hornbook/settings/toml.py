"""On which line of a TOML file each value stands; the standard parser does not tell.

The file has been read by `tomllib` before, so that this scanner may trust its syntax.
"""

import re
import tomllib

Path = tuple[str | int, ...]

_SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}' r"|'''.*?'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]+")


def key_lines(text: str) -> dict[Path, int]:
    """Line (from 1) of every key and list item of a valid TOML text, by path; list items have integers."""
    return _Scanner(text.replace("\r\n", "\n")).scan()


class _Scanner:
    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.counts: dict[Path, int] = {}

    def scan(self) -> dict[Path, int]:
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
            else:
                self._pair(table)
            self._skip()
        return self.lines

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

    def _key(self) -> tuple[str, ...]:
        parts = []
        while not parts or self._take("."):
            self._skip()
            match = _STRING.match(self.text, self.at) or _BARE_KEY.match(self.text, self.at)
            assert match is not None, "the text has been read by tomllib"
            self.at = match.end()
            parts.append(tomllib.loads(f"x = {match[0]}")["x"] if match[0][0] in "\"'" else match[0])
        return tuple(parts)

    def _resolve(self, key: tuple[str, ...]) -> Path:
        """A table below an array of tables belongs to the array's last item."""
        path: Path = ()
        for part in key:
            path = (*path, part)
            if path in self.counts:
                path = (*path, self.counts[path] - 1)
        return path

    def _new_item(self, key: tuple[str, ...]) -> Path:
        array = (*self._resolve(key[:-1]), key[-1])
        self._note(array)
        self.counts[array] = self.counts.get(array, 0) + 1
        item = (*array, self.counts[array] - 1)
        self._note(item)
        return item

    def _pair(self, table: Path) -> None:
        key = self._key()
        path = (*table, *key)
        for depth in range(len(table) + 1, len(path) + 1):
            self._note(path[:depth])
        self._take("=")
        self._value(path)

    def _value(self, path: Path) -> None:
        self._skip()
        string = _STRING.match(self.text, self.at)
        if string is not None:
            self.at = string.end()
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
