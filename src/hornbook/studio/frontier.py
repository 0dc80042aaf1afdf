"""A picture of what learning a domain costs elsewhere: loss on the one over loss on the other, a dot per setting."""

from collections.abc import Sequence
from typing import NamedTuple

from hornbook.studio.axis import fit_axis, label
from hornbook.studio.svg import element, line, path, safe, style, text

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 420, 74, 130, 48, 56


class Dot(NamedTuple):
    """A setting: values with half the widths of their intervals (0: none)."""

    name: str
    x: float
    y: float
    x_half: float = 0.0
    y_half: float = 0.0


def frontier(title: str, x_title: str, y_title: str, dots: Sequence[Dot]) -> str:
    """A self-contained SVG document; a line joins the dots in their order, the first one stands by itself."""
    x = fit_axis([end for dot in dots for end in (dot.x - dot.x_half, dot.x + dot.x_half)], LEFT, WIDTH - RIGHT)
    y = fit_axis([end for dot in dots for end in (dot.y - dot.y_half, dot.y + dot.y_half)], HEIGHT - BOTTOM, TOP)
    parts = [f"<style>{style()}</style>", element("rect", width=WIDTH, height=HEIGHT, class_="page")]
    parts.append(text(title, 12, 24, "head"))
    for tick in x.ticks(6):
        parts.append(line(x.pixel(tick), TOP, x.pixel(tick), HEIGHT - BOTTOM, "grid"))
        parts.append(text(label(tick), x.pixel(tick), HEIGHT - BOTTOM + 16, "small", "middle"))
    for tick in y.ticks(6):
        parts.append(line(LEFT, y.pixel(tick), WIDTH - RIGHT, y.pixel(tick), "grid"))
        parts.append(text(label(tick), LEFT - 6, y.pixel(tick) + 4, "small", "end"))
    parts.append(
        element("rect", x=LEFT, y=TOP, width=WIDTH - RIGHT - LEFT, height=HEIGHT - BOTTOM - TOP, class_="frame")
    )
    parts.append(path([(x.pixel(dot.x), y.pixel(dot.y)) for dot in dots[1:]], "line c0"))
    for number, dot in enumerate(dots):
        at, look = (x.pixel(dot.x), y.pixel(dot.y)), 1 if number == 0 else 0
        parts.append(line(x.pixel(dot.x - dot.x_half), at[1], x.pixel(dot.x + dot.x_half), at[1], f"c{look}"))
        parts.append(line(at[0], y.pixel(dot.y - dot.y_half), at[0], y.pixel(dot.y + dot.y_half), f"c{look}"))
        parts.append(element("circle", cx=at[0], cy=at[1], r=4, class_=f"dot f{look}"))
        parts.append(text(dot.name, at[0] + 8, at[1] - 6, "small"))
    parts.append(text(x_title, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "title", "middle"))
    parts.append(text(y_title, LEFT, TOP - 8, "title"))
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{safe(title)}" {size}>'
    return "\n".join([head, *parts, "</svg>", ""])
