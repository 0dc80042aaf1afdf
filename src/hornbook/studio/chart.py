"""A chart as an SVG picture, and as a page whose tooltip shows the values of the panel under the pointer."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from hornbook.studio.axis import Axis, grid_lines, numbers_below
from hornbook.studio.curve_history import History
from hornbook.studio.events import event_rows
from hornbook.studio.page_layout import CHARACTER_WIDTH, LEFT, ROW, WIDTH, Chart, Drawn, Panel, legend_width, name_rows
from hornbook.studio.svg import LIGHT, document, element, line, path, text

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""The browser lets the page load nothing."""
_MAX_DOTS = 60


def picture(chart: Chart) -> str:
    """The chart as a self-contained SVG document."""
    parts = [
        *_names(chart.histories),
        *event_rows(chart),
        *(part for panel in chart.panels for part in _panel(panel, chart.x)),
        *_foot(chart),
    ]
    titles = ", ".join(panel.title for panel in chart.panels)
    return document(f"{_all_names(chart)}: {titles}", WIDTH, chart.height, parts)


def page(chart: Chart) -> str:
    """The chart as one self-contained HTML file."""
    sheet, script = (Path(__file__).with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    data = json.dumps(chart.data(), separators=(",", ":")).replace("<", "\\u003c")
    head = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(_all_names(chart).encode(errors='replace').decode())}</title><style>\n{sheet}</style>",
    ]
    body = [
        picture(chart),
        '<div id="said" hidden></div>',
        f'<script type="application/json" id="data">{data}</script>',
    ]
    return "\n".join([*head, *body, f"<script>\n{script}</script>"]) + "\n"


def _all_names(chart: Chart) -> str:
    return ", ".join(history.name for history in chart.histories)


def _foot(chart: Chart) -> Iterator[str]:
    bottom = chart.panels[-1].y.start
    yield from numbers_below(chart.x, _whole_ticks(chart.x), bottom + 16)
    yield text(chart.position, chart.x.end, bottom + 32, "title", "end")


def _whole_ticks(x: Axis) -> list[float]:
    """Ticks at whole numbers: there is no half step."""
    return [tick for tick in x.ticks(8) if tick == round(tick)]


def _panel(panel: Panel, x: Axis) -> Iterator[str]:
    yield from _legend(panel)
    ticks = panel.y.ticks(6 if panel.y.start - panel.y.end > 120 else 4)
    yield from grid_lines(x, panel.y, _whole_ticks(x), ticks)
    for each in panel.curves:
        yield from _curve(each, x, panel.y)


def _legend(panel: Panel) -> Iterator[str]:
    y = panel.top - 8 - ROW * (len(panel.legend) - 1)
    yield text(panel.title, LEFT, y, "title")
    for number, row in enumerate(panel.legend):
        x = LEFT + CHARACTER_WIDTH * len(panel.title) + 24
        for each in row:
            yield from _sample(each, x, y + ROW * number - 4)
            yield text(each.label, x + 24, y + ROW * number, "small")
            x += legend_width(each.label)


def _sample(each: Drawn, x: float, y: float) -> Iterator[str]:
    """A short sample of a curve, for the legend."""
    at = Axis(0, 1, x, x + 20), Axis(0, 1, y, y)
    marks = [0.5] if each.curve.kind in ("held out", "whole") else [0.0, 1.0]
    short = replace(each, x=marks, y=marks)
    if each.curve.kind == "held out":
        yield line(x, y, x + 20, y, _look(each))
    yield from _curve(short, *at)


def _look(each: Drawn) -> str:
    look = {"steps": " faint" if each.beside_median else "", "median": " strong"}.get(each.curve.kind, "")
    return f"line c{each.colour}{look}"


def _curve(each: Drawn, x: Axis, y: Axis) -> Iterator[str]:
    points = [
        (x.pixel(at), y.pixel(value)) if math.isfinite(value) else None
        for at, value in zip(each.x, each.y, strict=True)
    ]
    if each.curve.kind != "whole":
        yield path(points, _look(each))
    if each.curve.kind == "whole":
        for at in filter(None, points):
            sign = f"translate({at[0]:.5g} {at[1]:.5g})"
            yield element("path", d="M0 -5L5 0L0 5L-5 0Z", class_=f"hollow c{each.colour}", transform=sign)
    elif each.curve.kind == "held out" and len(points) <= _MAX_DOTS:
        for at in filter(None, points):
            yield element("circle", cx=at[0], cy=at[1], r=2.6, class_=f"dot f{each.colour}")
    for at, value in zip(points, each.y, strict=True):
        if at is not None and value > y.high:  # beyond the axis: an arrow at its end says how much
            title = element("title", f"{value:.6g}")
            sign = f"translate({at[0]:.5g} {at[1] + 5:.5g})"
            yield element("path", title, d="M-4 4L0 -4L4 4Z", class_=f"dot f{each.colour}", transform=sign)


def _names(histories: Sequence[History]) -> Iterator[str]:
    """The name of the run, or of each with its colour."""
    if len(histories) == 1:
        yield text(histories[0].name, LEFT, 24, "head")
        return
    for row, named in enumerate(name_rows(histories)):
        x = float(LEFT)
        for number, name in named:
            y = 20 + ROW * row
            yield element("rect", x=x, y=y - 9, width=18, height=9, class_=f"dot f{number % len(LIGHT)}")
            yield text(name, x + 24, y, "title")
            x += 1.1 * legend_width(name)
