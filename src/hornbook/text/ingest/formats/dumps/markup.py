"""Markup of dumps to plain text in linear time: wikitext, and the simple HTML of forum posts.

Wikitext: one pass over marks, with a stack of what is open.

Templates, tables, references, comments and links to media and categories go; links leave their label, headings and
list items their text. A template whose text is part of a sentence (`lang`, `nowrap`, `convert`) leaves that text.
What is opened and never closed stays as text, so a slip of an author costs little.
"""

import html
import re
from dataclasses import dataclass, field

DROPPED_LINKS = frozenset(("file", "image", "media", "category"))
_DEPTH = 40
"""MediaWiki's own limit for templates in templates; what opens deeper is text. It bounds how often a part is copied."""

_MARKS = re.compile(
    r"""\{\{ | \}\} | ^[ \t:*#]{0,20}\{\| |^[ \t]{0,20}\|\} | \[\[ | \]\] | \[(?=(?:https?:)?//) | \] | \| | """
    r"""'{2,5} | __[A-Z]{3,30}__ | <!-- | --> | </?[a-zA-Z][a-zA-Z0-9]{0,15}(?:\s[^<>]{0,2000})?/?>""",
    re.VERBOSE | re.MULTILINE,
)
_TAG = re.compile(r"</?([a-zA-Z0-9]+)")
_DROPPED_TAGS = frozenset(("ref", "gallery", "timeline", "score", "imagemap"))
_RAW_TAGS = frozenset(("nowiki", "pre", "syntaxhighlight", "source"))
_OPENS = {"{{": "}}", "{|": "|}", "[[": "]]", "[": "]", "<!--": "-->"}
_INLINE = {"lang": -1, "nowrap": -1, "nobreak": -1, "transl": -1, "convert": 2, "cvt": 2}
"""Templates that leave text: -1 for the last argument, else how many of the first ones, joined by blanks."""
_GONE = "\1"
"""Marks where a template or a reference was, until the brackets around it are gone too."""
_EMPTY_BRACKETS = re.compile(rf"\((?=[\s,;:]{{0,40}}{_GONE})[\s,;:{_GONE}]{{0,80}}\)")
_BLOCK = re.compile("\0([0-9]+)\0")
"""A number of `_WikiStripper.blocks`."""
_BLANKS = re.compile(r"[ \t\u00a0]{2,}")
_LINES = re.compile(r"\n{3,}")
_ITEMS = re.compile(r"[*#]+[:;*#]*\s*|[:;]+\s*")

_HTML_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]{0,15})(?:\s[^<>]*)?/?>")
_HTML_BLOCKS = frozenset(
    ("p", "div", "ul", "ol", "pre", "blockquote", "table", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "hr")
)
_HTML_WHITESPACE = re.compile(r"[ \t\r\n]+")
_EMPTY_LINES = re.compile(r"\n[ \t]*\n[ \t\n]*")


@dataclass(slots=True)
class _Frame:
    """An open element: the mark that closes it, and its text by arguments."""

    closing: str
    arguments: list[list[str]] = field(default_factory=lambda: [[]])


def strip_markup(text: str, dropped: frozenset[str] = DROPPED_LINKS) -> str:
    """The text of an article; `dropped`: lower-case prefixes of links that are no words of it."""
    stripper = _WikiStripper(dropped)
    tidy = _tidy(stripper.strip(text.replace("\0", "").replace(_GONE, "")))
    return _BLOCK.sub(lambda match: stripper.blocks[int(match.group(1))], tidy)


class _WikiStripper:
    def __init__(self, dropped: frozenset[str]) -> None:
        self._dropped = dropped
        self._stack = [_Frame("")]
        self._waiting: dict[str, int] = {}
        """Closing mark -> how many open elements wait for it."""
        self.blocks: list[str] = []
        """Texts that stay as they are: code, and what stands in `pre` and `nowiki`."""
        self._unclosed: set[str] = set()
        """Tags that are not closed in the rest of the text, so that it is not searched again."""

    def strip(self, text: str) -> str:
        position = 0
        for match in _MARKS.finditer(text):
            if match.start() < position:
                continue
            self._write(text[position : match.start()])
            position = match.end()
            mark = match.group().lstrip(" \t:*#")
            if mark.startswith("<") and mark != "<!--":
                position = self._tag(text, mark, position)
            else:
                self._mark(mark)
        self._write(text[position:])
        while len(self._stack) > 1:
            self._give_up()
        return "".join(self._stack[0].arguments[0])

    def _write(self, text: str) -> None:
        if text:
            self._stack[-1].arguments[-1].append(text)

    def _mark(self, mark: str) -> None:
        top = self._stack[-1]
        if mark == "|":
            if top.closing in ("}}", "]]"):
                top.arguments.append([])
            elif top.closing != "|}":
                self._write(mark)
        elif mark.startswith(("''", "__")):
            return
        elif mark in _OPENS:
            self._open(_OPENS[mark], mark)
        elif mark == "]]" and top.closing == "]":
            self._close("]")
            self._close("]]") if self._waiting.get("]]") else self._write("]")
        elif self._waiting.get(mark):
            self._close(mark)
        else:
            self._write(mark)

    def _open(self, closing: str, opening: str) -> None:
        if len(self._stack) > _DEPTH:
            self._write(opening)
            return
        self._stack.append(_Frame(closing))
        self._waiting[closing] = self._waiting.get(closing, 0) + 1

    def _close(self, closing: str) -> None:
        """Close the innermost element that waits for the mark; unclosed ones in it are its text."""
        while self._stack[-1].closing != closing:
            self._give_up()
        frame = self._pop()
        arguments = ["".join(parts) for parts in frame.arguments]
        if closing == "}}":
            self._write(_template(arguments) or _GONE)
        elif closing == "]]":
            self._write(self._link(arguments))
        elif closing == "]":
            self._write(arguments[0].partition(" ")[2])
        else:
            self._write(_GONE)

    def _pop(self) -> _Frame:
        frame = self._stack.pop()
        self._waiting[frame.closing] -= 1
        return frame

    def _give_up(self) -> None:
        """The innermost open element is not closed: its parts are text."""
        frame = self._pop()
        self._write("|".join("".join(parts) for parts in frame.arguments))

    def _link(self, arguments: list[str]) -> str:
        target = arguments[0].strip()
        prefix, colon, _ = target.partition(":")
        if colon and prefix.strip().lower() in self._dropped:
            return ""
        return arguments[-1] if len(arguments) > 1 else target.removeprefix(":")

    def _tag(self, text: str, mark: str, position: int) -> int:
        """Handle a tag of HTML or of an extension; returns the position after it."""
        match = _TAG.match(mark)
        name = match.group(1).lower() if match else ""
        closing = f"</{name}>"
        opens = mark[1] != "/" and not mark.endswith("/>")
        if name in _RAW_TAGS and opens and name not in self._unclosed:
            end = re.compile(rf"</{name}\s{{0,8}}>", re.IGNORECASE).search(text, position)
            if end is not None:
                self._keep(name, text[position : end.start()])
                return end.end()
            self._unclosed.add(name)
        elif name in _DROPPED_TAGS and opens:
            self._open(closing, "")
        elif name in _DROPPED_TAGS and mark[1] == "/" and self._waiting.get(closing):
            self._close(closing)
        elif name == "math":
            self._write("$")
        elif name in ("br", "p", "div", "li", "tr"):
            self._write("\n")
        return position

    def _keep(self, name: str, text: str) -> None:
        """Write a text as it is; entities are characters but in code."""
        text = unescape(text) if name in ("nowiki", "pre") else text
        place, lines = f"\0{len(self.blocks)}\0", "\n" in text and name != "nowiki"
        self._write(f"\n{place}\n" if lines else place)
        self.blocks.append(text.strip("\n").rstrip() if lines else text)


def _template(arguments: list[str]) -> str:
    count = _INLINE.get(arguments[0].strip().lower())
    plain = [argument.strip() for argument in arguments[1:] if "=" not in argument]
    if count is None or not plain:
        return ""
    return plain[-1] if count < 0 else " ".join(plain[:count])


def _tidy(text: str) -> str:
    """Headings and items without their marks, entities as characters, no traces of what was removed."""
    lines: list[str] = []
    for line in unescape(text).split("\n"):
        lines.append(_BLANKS.sub(" ", _EMPTY_BRACKETS.sub("", _plain_line(line.strip())).replace(_GONE, "")))
    return _LINES.sub("\n\n", "\n".join(lines)).strip()


def _plain_line(line: str) -> str:
    if line.startswith("==") and line.endswith("=="):
        return "\n" + line.strip("=").strip() + "\n"
    if (item := _ITEMS.match(line)) is not None:
        return ("- " if line[0] in "*#" else "") + line[item.end() :]
    return line.lstrip("-") if line.startswith("----") else line


def unescape(text: str) -> str:
    """Character references as characters; a text with a number of thousands of digits is unchanged."""
    try:
        return html.unescape(text)
    except ValueError:
        return text


def plain_html(text: str) -> str:
    """The words of some HTML; white space counts only in `pre`."""
    parts: list[str] = []
    position = raw = 0

    def write(piece: str) -> None:
        parts.append(unescape(piece if raw else _HTML_WHITESPACE.sub(" ", piece)))

    for match in _HTML_TAG.finditer(text):
        write(text[position : match.start()])
        position = match.end()
        closes, name = match.group(1), match.group(2).lower()
        if name == "pre":
            raw = max(raw + (-1 if closes else 1), 0)
        if name in _HTML_BLOCKS:
            parts.append("\n\n")
        elif name == "br":
            parts.append("\n")
        elif name == "li" and not closes:
            parts.append("\n- ")
    write(text[position:])
    return _EMPTY_LINES.sub("\n\n", "".join(parts)).strip()
