"""Text of short, simple HTML (posts of a forum): tags become line ends or nothing; linear time, no parser needed."""

import html
import re

_TAGS = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]{0,15})(?:\s[^<>]*)?/?>")
_BLOCKS = frozenset(
    ("p", "div", "ul", "ol", "pre", "blockquote", "table", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "hr")
)
_BLANKS = re.compile(r"[ \t\r\n]+")
_LINES = re.compile(r"\n[ \t]*\n[ \t\n]*")


def unescape(text: str) -> str:
    """Character references as characters; a text with a number of thousands of digits stays as it is."""
    try:
        return html.unescape(text)
    except ValueError:
        return text


def plain_html(text: str) -> str:
    """The words of some HTML; white space counts only in `pre`."""
    parts: list[str] = []
    place = raw = 0

    def write(piece: str) -> None:
        parts.append(unescape(piece if raw else _BLANKS.sub(" ", piece)))

    for match in _TAGS.finditer(text):
        write(text[place : match.start()])
        place = match.end()
        closes, name = match.group(1), match.group(2).lower()
        if name == "pre":
            raw = max(raw + (-1 if closes else 1), 0)
        if name in _BLOCKS:
            parts.append("\n\n")
        elif name == "br":
            parts.append("\n")
        elif name == "li" and not closes:
            parts.append("\n- ")
    write(text[place:])
    return _LINES.sub("\n\n", "".join(parts)).strip()
