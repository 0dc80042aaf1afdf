"""SVG elements, paths and text. Colours are CSS classes, with a light and a dark scheme."""

from collections.abc import Iterable, Sequence
from html import escape

LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b0579a", "#9a7400", "#3f8fc0", "#6a5acd", "#555555")
DARK = ("#4fb0ea", "#ff8c42", "#35cfa0", "#e596c7", "#e6b800", "#8fd0ff", "#a99cff", "#bbbbbb")
"""Distinguishable for the colour-blind (after Okabe and Ito, 2008), with enough contrast on white and near-black."""
NEUTRAL = "n"
"""Class of the colour that stands for no run."""

_STYLE = """
text { font: 12px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; fill: #303845; }
text.title { font-weight: 600; } text.head { font-size: 15px; font-weight: 600; } text.small { font-size: 11px; }
.page { fill: #ffffff; } .grid { stroke: #e4e8ee; } .frame { stroke: #aab3c0; fill: none; }
.line { fill: none; stroke-linejoin: round; } .faint { stroke-opacity: .35; } .strong { stroke-width: 1.8; }
.dot { stroke: none; } .hollow { fill: #ffffff; stroke-width: 1.6; }
.dashed { stroke-dasharray: 7 3; } .when { stroke-dasharray: 2 3; stroke-opacity: .55; }
.cn { stroke: #606b7a; } .fn { fill: #606b7a; } .sign { stroke-width: 1.2; }
#cursor { stroke: #606b7a; stroke-dasharray: 3 3; }
"""
_DARK_STYLE = """
text { fill: #d5dbe4; } .page, .hollow { fill: #14181f; } .grid { stroke: #2a313c; } .frame { stroke: #59636f; }
.cn, #cursor { stroke: #9aa5b4; } .fn { fill: #9aa5b4; }
"""


def style() -> str:
    """The style sheet, which follows the reader's light or dark preference."""
    light = "".join(f".c{n} {{ stroke: {c}; }} .f{n} {{ fill: {c}; }}\n" for n, c in enumerate(LIGHT))
    dark = "".join(f".c{n} {{ stroke: {c}; }} .f{n} {{ fill: {c}; }}\n" for n, c in enumerate(DARK))
    return f"{_STYLE}{light}@media (prefers-color-scheme: dark) {{{_DARK_STYLE}{dark}}}\n"


def element(name: str, /, *inside: str, **attributes: object) -> str:
    """An element; `_` at the end of an attribute's name is dropped, other ones become `-`."""
    words = [f'{key.rstrip("_").replace("_", "-")}="{safe(_short(value))}"' for key, value in attributes.items()]
    head = " ".join([name, *words])
    return f"<{head}>{''.join(inside)}</{name}>" if inside else f"<{head}/>"


def text(words: str, x: float, y: float, class_: str = "", anchor: str = "start") -> str:
    """A line of text whose baseline is at y."""
    shape: dict[str, object] = {"class_": class_} if class_ else {}
    if anchor != "start":
        shape["text_anchor"] = anchor
    return element("text", safe(words), x=x, y=y, **shape)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def path(points: Sequence[tuple[float, float] | None], class_: str) -> str:
    """A polyline with a break at each None; a single point between two breaks is drawn as a dot."""
    words: list[str] = []
    for number, point in enumerate(points):
        if point is None:
            continue
        begins = number == 0 or points[number - 1] is None
        alone = begins and (number + 1 == len(points) or points[number + 1] is None)
        words.append(f"{'M' if begins else 'L'}{point[0]:.5g} {point[1]:.5g}{'h.1' if alone else ''}")
    return element("path", d="".join(words), class_=class_)


def document(label: str, width: float, height: float, parts: Iterable[str]) -> str:
    """A self-contained SVG document with the style sheet and a page under its parts; label: what screen readers say."""
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{safe(label)}" {size}>'
    page = f"<style>{style()}</style>", element("rect", width=width, height=height, class_="page")
    return "\n".join([head, *page, *parts, "</svg>", ""])


def safe(words: str) -> str:
    """Text for XML: escaped, with a replacement for characters that are not printable."""
    printable = "".join(letter if letter.isprintable() else "\ufffd" for letter in words)
    return escape(printable.encode(errors="replace").decode())


def _short(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
