"""LaTeX to text in linear time: prose and formulas stay, layout commands go.

Comments, the preamble, the bibliography, figures and definitions go; commands around words leave the words; headings
become lines; macros without arguments are expanded once, within a budget. Formulas stay as they are written.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from hornbook.text.ingest.formats.latex.verbatim import rewrite

_TOKENS = re.compile(r"\\[a-zA-Z@]+\*?|\\.|[{}\[\]$%~]|\n|&", re.DOTALL)
_BODY = "\\begin{document}"
_ENDS = ("\\end{document}", "\\begin{thebibliography}", "\\bibliography{", "\\printbibliography")
_MACRO = re.compile(
    r"\\(?:newcommand|renewcommand|providecommand|def)\*?\s{0,4}\{?(\\[a-zA-Z]{1,30})\}?\s{0,4}\{((?:[^{}]|\{[^{}]{0,60}\}){0,100})\}"
)
_NAMES: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_DROPPED, _HEADINGS = frozenset(_NAMES["dropped"]), frozenset(_NAMES["headings"])
_DROPPED_ENVIRONMENTS, _FORMULAS = frozenset(_NAMES["dropped_environments"]), frozenset(_NAMES["formulas"])
_CHARACTERS: dict[str, str] = _NAMES["characters"]
_WORDS: dict[str, str] = _NAMES["words"]
_ACCENTS: dict[str, str] = _NAMES["accents"]
_BASE = r"(\\[ij](?![a-zA-Z])\s?|[^\W\d_])"
_ACCENT = re.compile(
    rf"\\(?:([`'^~\"=.])[ \t]*|([{''.join(mark for mark in _ACCENTS if mark.isalpha())}])(?=[\s{{\\])[ \t]*)"
    rf"(?:\{{\s{{0,4}}{_BASE}\s{{0,4}}\}}?|{_BASE})"
)
"""An accent over a letter, which may be in braces: `\\'e`, `\\'{\\i}`, `\\H{o}`, `\\c c`."""
_KEPT = re.compile("\0([0-9]+)\0")
_BLANKS = re.compile(r"[ \t]+")
_LINES = re.compile(r"\n[ \t]*\n[ \t\n]*")
_NAME = re.compile(r"\\[a-zA-Z]{1,30}(?:#[1-9]){0,9}(?=[{\[])")
_INLINE = ("verb", "lstinline", "url", "path", "nolinkurl")
_GROWTH = 2
"""Macros may add this many times the size of a text."""
_LONGEST_FORMULA = 4000


def strip_latex(text: str) -> str:
    """The text of a paper or of a part of one."""
    literal: list[str] = []

    def keep(kind: str, inside: str, _: str) -> str:
        if kind in ("href", "comment"):  # the words of a link follow
            return ""
        literal.append(inside if kind in _INLINE else inside.strip("\n").rstrip())
        place = f"\0{len(literal) - 1}\0"
        return place if kind in _INLINE else f"\n{place}\n"

    text = rewrite(text.replace("\0", ""), keep)
    macros = dict(_MACRO.findall(text))
    title = _title(text)
    start = text.find(_BODY)
    body = text[start + len(_BODY) :] if start >= 0 else text
    ends = [position for mark in _ENDS if (position := body.find(mark)) >= 0]
    body = body[: min(ends)] if ends else body
    stripped = _LatexStripper(_expand(body, macros)).strip()
    lines = "\n".join(_BLANKS.sub(" ", line).strip() for line in stripped.split("\n"))
    tidy = _LINES.sub("\n\n", title + lines).strip()
    return _KEPT.sub(lambda match: literal[int(match.group(1))], tidy)


def strip_comments(text: str) -> str:
    """LaTeX without comments; lines that are nothing else go with their end."""
    return rewrite(text, lambda _kind, _inside, whole: whole)


def _title(text: str) -> str:
    """A title that stands in the preamble."""
    start, body = text.find("\\title{"), text.find(_BODY)
    if not 0 <= start < body:
        return ""
    end = _matching(text[start : start + 2000]).get(6)
    return "" if end is None else _LatexStripper(text[start + 7 : start + end]).strip().strip() + "\n\n"


def _expand(text: str, macros: dict[str, str]) -> str:
    """Replace macros without arguments by what they stand for, once, while the budget lasts."""
    if not macros:
        return text
    budget = _GROWTH * len(text)

    def meaning(match: re.Match[str]) -> str:
        nonlocal budget
        expansion = macros.get(match.group())
        if expansion is None or budget < len(expansion):
            return match.group()
        budget -= len(expansion)
        return expansion

    return re.sub(r"\\[a-zA-Z]{1,30}", meaning, text)


def _matching(text: str) -> dict[int, int]:
    """Position of each closed brace and bracket -> position of its closing one; brackets pair within braces."""
    pairs: dict[int, int] = {}
    braces: list[int] = []
    brackets: list[int] = []
    for match in _TOKENS.finditer(text):
        mark, position = match.group(), match.start()
        if mark == "{":
            braces.append(position)
        elif mark == "[":
            brackets.append(position)
        elif mark == "}" and braces:
            opening = braces.pop()
            pairs[opening] = position
            # brackets that were opened within these braces are never closed
            while brackets and brackets[-1] > opening:
                brackets.pop()
        elif mark == "]" and brackets and brackets[-1] > (braces[-1] if braces else -1):
            pairs[brackets.pop()] = position
    return pairs


class _LatexStripper:
    def __init__(self, text: str) -> None:
        self._text, self._pairs = text, _matching(text)
        self._parts: list[str] = []
        self._headings: set[int] = set()
        """Positions of braces that end a heading."""
        self._next_at: dict[str, int] = {}
        """Mark -> the last position found by `_next`, the length where there is none; so no text is searched twice."""

    def strip(self) -> str:
        position = 0
        while (match := _TOKENS.search(self._text, position)) is not None:
            self._parts.append(self._text[position : match.start()])
            position = self._token(match.group(), match.start(), match.end())
        self._parts.append(self._text[position:])
        return "".join(self._parts)

    def _token(self, mark: str, start: int, end: int) -> int:
        """Write the text of a token; returns the position after it."""
        if mark in "{}[]~&\n":
            self._parts.append(
                {"{": "", "}": "\n" if start in self._headings else "", "~": " ", "&": " "}.get(mark, mark)
            )
            return end
        if mark == "$" or mark in ("\\(", "\\["):
            return self._formula(mark, start, end)
        if (accent := _ACCENT.match(self._text, start)) is not None:
            base = (accent.group(3) or accent.group(4)).strip("\\ \t\n")
            self._parts.append(base + _ACCENTS[accent.group(1) or accent.group(2)])
            return accent.end()
        if not mark[1:2].isalpha():
            self._parts.append(_CHARACTERS.get(mark, ""))
            return self._past_options(end) if mark == "\\\\" else end
        return self._command(mark.rstrip("*"), end)

    def _formula(self, mark: str, start: int, end: int) -> int:
        closing = {"$": "$", "\\(": "\\)", "\\[": "\\]"}[mark]
        if self._text.startswith("$$", start):
            closing, end = "$$", start + 2
        position = self._next(closing, end)
        while closing == "$" and 0 < position < len(self._text) and self._text[position - 1] == "\\":
            position = self._text.find("$", position + 1)
            position = len(self._text) if position < 0 else position
        if position >= len(self._text) or position - end > _LONGEST_FORMULA:
            return end
        self._parts.append(self._text[start : position + len(closing)])
        return position + len(closing)

    def _next(self, mark: str, position: int) -> int:
        """The next position of a mark, at or after a position; the length where there is none."""
        known = self._next_at.get(mark, -1)
        if known < position:
            known = self._text.find(mark, position)
            self._next_at[mark] = known = len(self._text) if known < 0 else known
        return known

    def _command(self, mark: str, end: int) -> int:
        name = mark[1:]
        if name in ("begin", "end"):
            return self._environment(name, end)
        if mark in _WORDS:
            self._parts.append(_WORDS[mark])
            return self._past_blank(end)
        if name in _DROPPED:
            return self._past_arguments(end)
        opening = self._past_options(end)
        if name in _HEADINGS and opening in self._pairs and self._text[opening] == "{":
            self._parts.append("\n\n")
            self._headings.add(self._pairs[opening])
            return opening
        return opening if opening in self._pairs and self._text[opening] == "{" else self._past_blank(end)

    def _past_blank(self, position: int) -> int:
        return position + 1 if self._text[position : position + 1] == " " else position

    def _past_options(self, position: int) -> int:
        """Past `[...]` that belongs to a command."""
        if self._text[position : position + 1] == "[" and position in self._pairs:
            return self._pairs[position] + 1
        return position

    def _past_arguments(self, position: int) -> int:
        """Past all `[...]` and `{...}`, and a macro's name that stands between."""
        while True:
            if self._text[position : position + 1] in ("[", "{") and position in self._pairs:
                position = self._pairs[position] + 1
            elif (name := _NAME.match(self._text, position)) is not None:
                position = name.end()
            else:
                return position

    def _environment(self, kind: str, position: int) -> int:
        closed = self._pairs.get(position)
        if closed is None:
            return position
        name, end = self._text[position + 1 : closed], closed + 1
        if kind == "begin" and name in _DROPPED_ENVIRONMENTS | _FORMULAS:
            closing = f"\\end{{{name}}}"
            closing_at = self._next(closing, end)
            if closing_at < len(self._text):
                if name in _FORMULAS:
                    self._parts.append("\n" + self._text[position - len("\\begin") : closing_at + len(closing)] + "\n")
                return closing_at + len(closing)
        self._parts.append("\n")
        return self._past_options(end)
