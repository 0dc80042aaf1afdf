"""Layout of a chart: one panel per metric, below each other over one axis, for one or several runs."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from hornbook.studio.axis import Axis, fit_axis
from hornbook.studio.curve_history import TRAINING, Curve, History, Position, median_width
from hornbook.studio.series import thin
from hornbook.studio.svg import LIGHT, NEUTRAL

WIDTH, LEFT, RIGHT = 960, 62, 14
ROW = 17
"""Height of a line of text, in pixels."""
CHARACTER_WIDTH = 6.4
"""Mean width of a character, in pixels; widths of texts are estimated with it."""
_HEIGHTS = {"loss": 260, "held out": 170, "other": 110}
_HEAD, _GAP = 22, 16
_COMMON = {"steps": "every step", "median": "median", "held out": "held out", "whole": "held out, all rows"}
Item = TypeVar("Item")


@dataclass(frozen=True)
class Drawn:
    """A curve with its style, thinned."""

    run: int
    curve: Curve
    label: str
    """Its name in the legend."""
    colour: str
    x: list[float]
    y: list[float]
    beside_median: bool
    """Values of all steps that are drawn faint, beside their median."""

    def data(self) -> dict[str, Any]:
        """The data of the page's tooltip."""
        values = [float(f"{value:.6g}") if math.isfinite(value) else None for value in self.y]
        return {"run": self.run, "name": self.curve.name, "x": [round(place) for place in self.x], "y": values}


@dataclass(frozen=True)
class Panel:
    """The curves of one metric with their axis and legend."""

    title: str
    top: float
    y: Axis
    curves: list[Drawn]
    legend: list[list[Drawn]]
    """Rows of the legend, one curve for each name; empty if there is one curve."""


@dataclass(frozen=True)
class Chart:
    """Runs, their horizontal axis, and the panels from top to bottom."""

    histories: Sequence[History]
    position: Position
    x: Axis
    panels: list[Panel]
    height: float

    def describe(self) -> dict[str, int]:
        """Title of each panel -> number of its curves."""
        return {panel.title: len(panel.curves) for panel in self.panels}

    def data(self) -> dict[str, Any]:
        """The data of the page's tooltip."""
        names = [history.name for history in self.histories]
        panels = [
            {
                "title": panel.title,
                "top": panel.y.end,
                "bottom": panel.y.start,
                "curves": [each.data() for each in panel.curves if each.curve.kind != "median"],
            }
            for panel in self.panels
        ]
        axis = {"low": self.x.low, "high": self.x.high, "start": self.x.start, "end": self.x.end, "width": WIDTH}
        return {"runs": names, "position": self.position, "axis": axis, "panels": panels}


def make_chart(histories: Sequence[History], position: Position, *, log: bool = False) -> Chart:
    """Lay out the metrics of at least one run. log: the loss on a logarithmic axis."""
    ends = [(curve.x[0], curve.x[-1]) for history in histories for curve in history.curves]
    low, high = float(min(first for first, _ in ends)), float(max(last for _, last in ends))
    x = Axis(low, high if high > low else low + 1, LEFT, WIDTH - RIGHT)
    top = names_height(histories)
    if any(history.events for history in histories):
        top += ROW * (1 + len(histories))
    panels: list[Panel] = []
    for title, curves in _by_metric(histories).items():
        top += _GAP
        panels.append(_lay_out(title, list(curves), x, top, len(histories), log=log and title == "loss"))
        top = panels[-1].y.start
    return Chart(histories, position, x, panels, top + 44)


def _by_metric(histories: Sequence[History]) -> dict[str, list[tuple[int, Curve]]]:
    """(number of the run, curve) by metric: the loss, then metrics of held-out text, then the others.

    Curves of several runs have the runs' colours, so each source has a panel of its own.
    """
    found: dict[str, list[tuple[int, Curve]]] = {}
    for number, history in enumerate(histories):
        for curve in history.curves:
            apart = len(histories) > 1 and curve.metric not in TRAINING.values()
            found.setdefault(f"{curve.metric}: {curve.name}" if apart else curve.metric, []).append((number, curve))
    after = [metric for metric in TRAINING.values() if metric != "loss"]
    order = ["loss", *(metric for metric in found if metric not in TRAINING.values()), *after]
    return {metric: found[metric] for metric in order if metric in found}


def _lay_out(title: str, curves: list[tuple[int, Curve]], x: Axis, top: float, runs: int, *, log: bool) -> Panel:
    names = list(dict.fromkeys(curve.name for _, curve in curves if curve.kind in ("held out", "whole")))
    kind = title if title == "loss" else "other" if title in TRAINING.values() else "held out"
    drawn = [_drawn(number, curve, x, runs, names) for number, curve in curves]
    named = {each.label: each if runs == 1 else replace(each, colour=NEUTRAL) for each in drawn if kind != "other"}
    widths = [legend_width(name) for name in named]
    shown = list(named.values()) if len(named) > 1 else []
    legend = _wrap(shown, widths[: len(shown)], WIDTH - LEFT - RIGHT - CHARACTER_WIDTH * len(title) - 24)
    start = top + _HEAD + ROW * (len(legend) - 1)
    values = [value for each in drawn for value in each.y if math.isfinite(value)]
    log = log or title == "gradient norm"
    return Panel(title, start, fit_axis(values, start + _HEIGHTS[kind], start, log=log), drawn, legend)


def _drawn(run: int, curve: Curve, x: Axis, runs: int, names: Sequence[str]) -> Drawn:
    """One run: a colour for each source. Several runs: a colour for each run."""
    number = names.index(curve.name) if curve.name in names else 0
    source = int(curve.kind in ("held out", "whole")) if curve.metric == "loss" else number
    kept = thin(curve.x, curve.y, round(x.end - x.start), x.low, x.high)
    places, values, colour = curve.x[kept].tolist(), curve.y[kept].tolist(), source if runs == 1 else run
    beside = curve.kind == "steps" and bool(median_width(len(curve.x))) and curve.metric != TRAINING["lr"]
    return Drawn(run, curve, _label(curve, runs), str(colour % len(LIGHT)), places, values, beside)


def _label(curve: Curve, runs: int) -> str:
    """Name of a curve in the legend; for several runs a name that they share."""
    if curve.metric == "loss" and runs > 1:
        return _COMMON[curve.kind]
    return "all rows" if curve.kind == "whole" and curve.metric != "loss" else curve.name


def legend_width(name: str) -> float:
    """Width of a sample and a name."""
    return 34 + CHARACTER_WIDTH * len(name)


def name_rows(histories: Sequence[History]) -> list[list[tuple[int, str]]]:
    """(number, name) of each run, in rows that fit the width."""
    named = [(number, history.name) for number, history in enumerate(histories)]
    return _wrap(named, [1.1 * legend_width(name) for _, name in named], WIDTH - LEFT - RIGHT)


def _wrap(items: Sequence[Item], widths: Sequence[float], room: float) -> list[list[Item]]:
    """Items in rows no wider than `room`; an item that is wider has a row of its own."""
    rows: list[list[Item]] = [[]]
    space = room
    for item, width in zip(items, widths, strict=True):
        if width > space and rows[-1]:
            rows.append([])
            space = room
        rows[-1].append(item)
        space -= width
    return rows


def names_height(histories: Sequence[History]) -> float:
    """Height of the rows with the names of runs."""
    return 16.0 + ROW * len(name_rows(histories)) if len(histories) > 1 else 36.0
