"""A terminal for tests: a pseudo-terminal that a process writes to, and what a person would see on it."""

import fcntl
import os
import re
import struct
import sys
import termios
import threading
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import pytest

ENVIRON = {"TERM": "xterm-256color", "COLUMNS": "", "LINES": "", "NO_COLOR": ""}
"""Of a process that takes the size from its terminal. `NO_COLOR` without a value asks for nothing."""

_TOKENS = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b.|[\r\n\t]|[^\x00-\x1f]")
_UNFINISHED = re.compile(r"\x1b(?:\[[?0-9;]*)?$")


@dataclass
class Screen:
    """All lines that were ever shown, as they stand now. It knows what rich writes, and refuses the rest."""

    columns: int
    cells: list[dict[int, tuple[str, str]]] = field(default_factory=lambda: [{}])
    """Of each line, by column: character and style (parameters of SGR)."""
    row: int = 0
    column: int = 0
    style: str = ""
    rest: str = ""
    """The begin of a sequence whose end is still to come."""

    def feed(self, text: str) -> None:
        """Take what a process wrote, in whatever pieces."""
        text = self.rest + text
        cut = _UNFINISHED.search(text)
        self.rest, text = (text[cut.start() :], text[: cut.start()]) if cut else ("", text)
        for token in _TOKENS.finditer(text):
            self._take(token[0], token[1] or "", token[2] or "")

    @property
    def lines(self) -> list[str]:
        """What is to be read, without blanks at the ends of lines."""
        return ["".join(line.get(at, (" ", ""))[0] for at in range(max(line, default=-1) + 1)) for line in self.cells]

    @property
    def text(self) -> str:
        """The same as one text."""
        return "\n".join(line.rstrip() for line in self.lines)

    def _take(self, token: str, numbers: str, letter: str) -> None:
        if letter:
            self._control(numbers, letter)
        elif token == "\r":
            self.column = 0
        elif token == "\n":
            self._go_down()
        elif token == "\t":
            self.column = min(self.column // 8 * 8 + 8, self.columns - 1)
        elif not token.startswith("\x1b"):
            if self.column == self.columns:  # a terminal wraps when the next character comes
                self.column = 0
                self._go_down()
            self.cells[self.row][self.column] = token, self.style
            self.column += 1

    def _go_down(self) -> None:
        self.row += 1
        if self.row == len(self.cells):
            self.cells.append({})

    def _control(self, numbers: str, letter: str) -> None:
        count = int(numbers) if numbers.isdecimal() else 0
        match letter:
            case "m":
                self.style = numbers
            case "A":
                self.row = max(self.row - max(count, 1), 0)
            case "B":
                self.row = min(self.row + max(count, 1), len(self.cells) - 1)
            case "K":
                line = self.cells[self.row]
                kept = {at: cell for at, cell in line.items() if at < self.column} if count == 0 else {}
                self.cells[self.row] = kept
            case "J":
                line = self.cells[self.row]
                self.cells[self.row :] = [{at: cell for at, cell in line.items() if at < self.column}]
            case "h" | "l":
                """The cursor appears or goes; modes of keys."""
            case _:
                raise AssertionError(f"a terminal would have to know CSI {numbers}{letter}")


class Shown:
    """A stream that says it is a terminal, in this process; it keeps what was written."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    @classmethod
    def as_stderr(cls, monkeypatch: pytest.MonkeyPatch) -> Self:
        """Be stderr until the test ends, with 80 columns. Call it in the test: pytest takes it away from fixtures."""
        shown = cls()
        for name, value in (ENVIRON | {"COLUMNS": "80", "LINES": "24"}).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "stderr", shown)
        return shown

    def write(self, text: str) -> int:
        """Keep it."""
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Nothing is held back."""

    def isatty(self) -> bool:
        """So it says."""
        return True

    def screen(self, columns: int = 80) -> Screen:
        """What a person sees now."""
        screen = Screen(columns)
        screen.feed(self.text.replace("\n", "\r\n"))  # as a terminal does
        return screen


class Terminal:
    """A pseudo-terminal of some columns; what is written to `path` is collected until the context ends."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self._ours, self._theirs = os.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.path = os.ttyname(self._theirs)
        self.parts: list[bytes] = []
        """What was written, in the pieces in which it came."""
        self._reader = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._theirs)  # the last one: the reader comes to the end
        self._reader.join(10)
        os.close(self._ours)

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._ours, 65536)
            except OSError:  # nobody has the other side any more
                return
            if not part:
                return
            self.parts.append(part)

    @property
    def written(self) -> str:
        """All that was written."""
        return b"".join(self.parts).decode()

    def screen(self) -> Screen:
        """What a person sees now."""
        screen = Screen(self.columns)
        screen.feed(self.written)
        return screen
