"""A chart of bars over a logarithmic axis, one for each name."""

from collections.abc import Mapping

from hornbook.studio.axis import fit_axis, label
from hornbook.studio.page_layout import CHARACTER_WIDTH, ROW
from hornbook.studio.svg import document, element, line, text

WIDTH, TOP, BAR = 760, 34, 11
VALUE = 60
"""Room for a value behind the longest bar, in pixels."""


def bar_chart(title: str, bars: Mapping[str, float]) -> str:
    """A self-contained SVG document; the values are above 0, and bars stand in the order given."""
    left = 16 + CHARACTER_WIDTH * max(map(len, bars))
    axis = fit_axis(list(bars.values()), left, WIDTH - VALUE, log=True)
    bottom = TOP + ROW * len(bars) + 4
    parts = [text(title, 12, 20, "head")]
    for tick in axis.ticks(6):
        parts += [line(axis.pixel(tick), TOP, axis.pixel(tick), bottom, "grid")]
        parts.append(text(label(tick), axis.pixel(tick), bottom + 16, "small", "middle"))
    for number, (name, value) in enumerate(bars.items()):
        y, end = TOP + ROW * number + 2, axis.pixel(value)
        parts.append(text(name, left - 6, y + BAR - 1, "small", "end"))
        parts.append(element("rect", x=left, y=y, width=max(end - left, 1.0), height=BAR, class_="f0"))
        parts.append(text(label(value), end + 5, y + BAR - 1, "small"))
    return document(title, WIDTH, bottom + 30, parts)
