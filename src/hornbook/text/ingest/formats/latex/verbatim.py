"""Literal text of LaTeX, in which `%` is no comment (verbatim environments, `\\verb`, addresses); and comments."""

import re
from collections.abc import Callable

_SPECIAL = re.compile(
    r"""\\(?:verb|lstinline)\*?(?![a-zA-Z@])(?:\[[^\]\n]{0,200}\])? | """
    r"""\\(?P<address>url|path|nolinkurl|href)\s{0,4}(?P<open>\{) | """
    r"""\\begin\{(?P<name>verbatim\*?|Verbatim\*?|BVerbatim|LVerbatim|lstlisting|minted|alltt|comment)\}"""
    r"""(?:\[[^\]\n]{0,400}\])?(?:\{[a-z0-9+#-]{1,20}\}(?=\s))? | \\iffalse(?![a-zA-Z@]) | \\[\s\S] | %""",
    re.VERBOSE,
)
_FALSE = "\\fi"
_SIGNED = ("verb", "lstinline")
"""Commands whose text stands between two signs."""
Keep = Callable[[str, str, str], str]
"""From a command or an environment, the text that is literal in it, and both as written, to what stands for them."""


def rewrite(text: str, keep: Keep) -> str:
    """LaTeX without comments and `\\iffalse`, and with `keep` of what is literal; in linear time.

    Lines that are comments alone go with their ends.
    """
    parts: list[str] = []
    missing: set[str] = set()
    """Ends that do not come any more, so that they are not searched again."""
    closing, position = _closing_braces(text), 0
    while (match := _SPECIAL.search(text, position)) is not None:
        parts.append(text[position : match.start()])
        mark, name = match.group(), match.group("name")
        if mark == "%":
            position = _past_comment(text, match.start(), parts)
            continue
        kind, start = name or match.group("address") or re.split(r"[\\*\[]", mark)[1], match.end()
        span: tuple[int, int] | None = None
        if name or mark == "\\iffalse":
            span = _ended(text, f"\\end{{{name}}}" if name else _FALSE, start, missing)
        elif match.group("address"):
            span = closing.get(start)
        elif kind in _SIGNED:
            span = _delimited(text, mark, start)
        if span is None:
            parts.append(mark)
            position = start
            continue
        if mark != "\\iffalse":
            parts.append(keep(kind, text[start + (kind in _SIGNED) : span[0]], text[match.start() : span[1]]))
        position = span[1]
    parts.append(text[position:])
    return "".join(parts)


def _past_comment(text: str, start: int, parts: list[str]) -> int:
    end = text.find("\n", start)
    end = len(text) if end < 0 else end
    line = parts[-1].rpartition("\n")
    if not line[2].strip(" \t") and (line[1] or len(parts) == 1):  # nothing but the comment stands on the line
        parts[-1] = line[0] + line[1]
        return min(end + 1, len(text))
    return end


def _ended(text: str, closing: str, start: int, missing: set[str]) -> tuple[int, int] | None:
    end = -1 if closing in missing else text.find(closing, start)
    if end < 0:
        missing.add(closing)
        return None
    return end, end + len(closing)


def _closing_braces(text: str) -> dict[int, tuple[int, int]]:
    """Return where the brace is that closes each opened one on its line, by the place after the opened one."""
    closing, opened = dict[int, tuple[int, int]](), list[int]()
    for match in re.finditer(r"\\.|[{}\n]", text):
        if match.group() == "{":
            opened.append(match.end())
        elif match.group() == "}" and opened:
            closing[opened.pop()] = match.span()
        elif match.group() == "\n":
            opened.clear()
    return closing


def _delimited(text: str, mark: str, start: int) -> tuple[int, int] | None:
    """`|...|` of any sign, or braces where a package allows them; on one line."""
    first = text[start : start + 1]
    if not first or first.isspace() or first.isalnum():
        return None
    line = text.find("\n", start)
    end = text.find(
        "}" if first == "{" and not mark.startswith("\\verb") else first, start + 1, None if line < 0 else line
    )
    return None if end < 0 else (end, end + 1)
