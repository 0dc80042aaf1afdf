"""A picture of what learning a domain costs elsewhere: loss on the one over loss on the other, a dot per setting."""

from collections.abc import Sequence
from typing import NamedTuple

from hornbook.studio.axis import fit_axis, grid_lines, numbers_below
from hornbook.studio.svg import document, element, line, path, text

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
    parts = [text(title, 12, 24, "head"), *grid_lines(x, y, x.ticks(6), y.ticks(6))]
    parts += numbers_below(x, x.ticks(6), HEIGHT - BOTTOM + 16)
    parts.append(path([(x.pixel(dot.x), y.pixel(dot.y)) for dot in dots[1:]], "line c0"))
    for number, dot in enumerate(dots):
        at, look = (x.pixel(dot.x), y.pixel(dot.y)), 1 if number == 0 else 0
        parts.append(line(x.pixel(dot.x - dot.x_half), at[1], x.pixel(dot.x + dot.x_half), at[1], f"c{look}"))
        parts.append(line(at[0], y.pixel(dot.y - dot.y_half), at[0], y.pixel(dot.y + dot.y_half), f"c{look}"))
        parts.append(element("circle", cx=at[0], cy=at[1], r=4, class_=f"dot f{look}"))
        parts.append(text(dot.name, at[0] + 8, at[1] - 6, "small"))
    parts.append(text(x_title, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14, "title", "middle"))
    parts.append(text(y_title, LEFT, TOP - 8, "title"))
    return document(title, WIDTH, HEIGHT, parts)
