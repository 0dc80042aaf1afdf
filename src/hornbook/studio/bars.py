"""A chart of bars over a logarithmic axis, one for each name."""

from collections.abc import Mapping

from hornbook.studio.axis import fit_axis, label
from hornbook.studio.page_layout import CHARACTER_WIDTH, ROW
from hornbook.studio.svg import element, line, style, text

WIDTH, TOP, BAR = 760, 34, 11
VALUE = 60
"""Room for a value behind the longest bar, in pixels."""


def bar_chart(title: str, bars: Mapping[str, float]) -> str:
    """A self-contained SVG document; the values are above 0, and bars stand in the order given."""
    left = 16 + CHARACTER_WIDTH * max(map(len, bars))
    axis = fit_axis(list(bars.values()), left, WIDTH - VALUE, log=True)
    bottom = TOP + ROW * len(bars) + 4
    parts = [f"<style>{style()}</style>", element("rect", width=WIDTH, height=bottom + 30, class_="page")]
    parts.append(text(title, 12, 20, "head"))
    for tick in axis.ticks(6):
        parts += [line(axis.pixel(tick), TOP, axis.pixel(tick), bottom, "grid")]
        parts.append(text(label(tick), axis.pixel(tick), bottom + 16, "small", "middle"))
    for number, (name, value) in enumerate(bars.items()):
        y, end = TOP + ROW * number + 2, axis.pixel(value)
        parts.append(text(name, left - 6, y + BAR - 1, "small", "end"))
        parts.append(element("rect", x=left, y=y, width=max(end - left, 1.0), height=BAR, class_="f0"))
        parts.append(text(label(value), end + 5, y + BAR - 1, "small"))
    size = f'width="{WIDTH}" height="{bottom + 30:g}" viewBox="0 0 {WIDTH} {bottom + 30:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size}>\n' + "\n".join(parts) + "\n</svg>\n"
