"""A picture of a simulated scaling: throughput, shares of a step, and goodput over the number of devices."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from hornbook.plan.at_scale.simulation import Point, Scaling
from hornbook.studio.axis import Axis, fit_axis, grid_lines, numbers_below
from hornbook.studio.svg import document, path, text

WIDTH, LEFT, RIGHT, TOP, PANEL, GAP = 760, 70, 20, 64, 150, 46
LEGEND = 20.0
"""Pixels of a sample of a line in a legend."""

Value = Callable[[Point], float | None]


def scale_picture(found: Scaling) -> str:
    """A self-contained SVG document."""
    devices = [point.devices for curve in found.curves for point in curve.points]
    x = fit_axis(devices, LEFT, WIDTH - RIGHT, log=True)
    height = TOP + 3 * (PANEL + GAP) + 10
    title = f"{found.name} on {found.cluster.device.name}, simulated"
    parts = [
        text(title, LEFT, 24, "head"),
        *_panel("tokens per second (dashed: as the first point scales)", list(_rates(found)), x, TOP, log=True),
        *_panel("shares of a step, strong scaling", list(_shares(found)), x, TOP + PANEL + GAP),
        *_panel("goodput with failures and saves", list(_goodput(found)), x, TOP + 2 * (PANEL + GAP)),
        text("devices", x.end, height - 6, "title", "end"),
    ]
    return document(title, WIDTH, height, parts)


Line = tuple[str, str, list[tuple[int, float | None]]]
"""Name, classes, values by number of devices; None where there is none."""


def _series(points: Sequence[Point], value: Value) -> list[tuple[int, float | None]]:
    return [(each.devices, value(each) if each.fits else None) for each in points]


def _rates(found: Scaling) -> Iterator[Line]:
    for colour, curve in enumerate(found.curves):
        yield curve.kind, f"c{colour}", _series(curve.points, lambda point: point.layout and _rate(point))
    known = [point for curve in found.curves for point in curve.points if point.fits]
    if known:
        first = min(known, key=lambda point: point.devices)
        even = [(point.devices, _rate(first) * point.devices / first.devices) for point in found.curves[0].points]
        yield "linear", "cn dashed", list(even)


def _rate(point: Point) -> float:
    assert point.layout is not None
    return point.layout.tokens_per_second


def _shares(found: Scaling) -> Iterator[Line]:
    parts = {"compute": ("compute", "recompute", "update"), "messages": ("tensor", "data"), "bubble": ("bubble",)}
    for colour, (name, names) in enumerate(parts.items()):
        yield name, f"c{colour + 2}", _series(found.curves[0].points, partial(_share, names))


def _share(names: Sequence[str], point: Point) -> float | None:
    return point.layout and sum(getattr(point.layout.step, name) for name in names) / point.layout.step.total


def _goodput(found: Scaling) -> Iterator[Line]:
    for colour, curve in enumerate(found.curves):
        yield curve.kind, f"c{colour}", _series(curve.points, lambda point: point.upkeep and point.upkeep.goodput)


def _panel(title: str, lines: Sequence[Line], x: Axis, top: float, *, log: bool = False) -> Iterator[str]:
    values = [value for _, _, series in lines for _, value in series if value is not None]
    y = fit_axis(values or [0.0, 1.0], top + PANEL, top, log=log)
    yield from _legend(title, lines, top - 10)
    yield from grid_lines(x, y, x.ticks(8), y.ticks(5))
    yield from numbers_below(x, x.ticks(8), top + PANEL + 15)
    for _, look, series in lines:
        points = [None if value is None else (x.pixel(at), y.pixel(value)) for at, value in series]
        yield path(points, f"line {look}")


def _legend(title: str, lines: Sequence[Line], y: float) -> Iterator[str]:
    yield text(title, LEFT, y, "title")
    x = LEFT + 7.0 * len(title) + 24
    for name, look, _ in lines:
        yield path([(x, y - 4), (x + LEGEND, y - 4)], f"line {look}")
        yield text(name, x + LEGEND + 4, y, "small")
        x += LEGEND + 14 + 7.0 * len(name)
