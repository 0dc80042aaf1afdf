"""Events of runs, above their charts: a row of signs per run, and a legend."""

from collections.abc import Iterator

from hornbook.studio.curve_history import EVENT_NAMES, SPIKE, Event, History
from hornbook.studio.page_layout import CHARACTER_WIDTH, LEFT, ROW, Chart, names_height
from hornbook.studio.svg import LIGHT, NEUTRAL, element, line, safe, text

_SIGNS = {
    SPIKE: "M-4 4L0 -4L4 4Z",
    "resumed": "M-3 -4L4 0L-3 4Z",
    "ranks restarted": "M-4 -4L4 4M-4 4L4 -4",
    "saved": "M-2 0A2 2 0 1 0 2 0A2 2 0 1 0 -2 0Z",
    "step refused: not finite": "M0 -5L5 0L0 5L-5 0Z",
    "shortened": "M-4 0H4M-4 -4V4",
    "settings changed": "M0 -5V5M-5 0H5",
    "warning": "M0 -5V2M0 4V5",
    "stopped": "M-4 -4H4V4H-4Z",
    "failed": "M-4 -4H4V4H-4ZM-4 -4L4 4",
}
_QUIET = ("saved", "warning")
"""Events without a line through the charts."""
_SIGN_SPACING = -10
"""Horizontal distance between two signs of one position."""
_MAX_LINES = 40
"""A run with more events gets signs only, no lines."""


def event_rows(chart: Chart) -> Iterator[str]:
    """The signs, and lines through all charts where a run took another course."""
    y = names_height(chart.histories)
    if any(history.events for history in chart.histories):
        yield from _legend(chart, y)
    for number, run in enumerate(chart.histories):
        y += ROW
        yield from _row(chart, run, f"c{number % len(LIGHT)}", y)


def _legend(chart: Chart, y: float) -> Iterator[str]:
    there, x = {event.name for run in chart.histories for event in run.events}, float(LEFT)
    for name in EVENT_NAMES:
        if name in there:
            yield _sign(name, f"c{NEUTRAL}", x + 5, y)
            yield text(name, x + 14, y + 13, "small")
            x += 28 + CHARACTER_WIDTH * len(name)


def _row(chart: Chart, run: History, colour: str, y: float) -> Iterator[str]:
    loud = [event for event in run.events if event.name not in _QUIET]
    for event in loud if len(loud) <= _MAX_LINES else ():
        x = chart.x.pixel(event.x)
        yield line(x, chart.panels[0].y.end, x, chart.panels[-1].y.start, f"when {colour}")
    there: dict[int, dict[str, Event]] = {}
    for event in run.events:  # of several of a kind at one place, the last
        there.setdefault(round(chart.x.pixel(event.x)), {})[event.name] = event
    for place, found in there.items():
        for number, event in enumerate(sorted(found.values(), key=lambda event: event.name in _QUIET)):
            yield _sign(event.name, colour, place + _SIGN_SPACING * number, y, event.text)


def _sign(name: str, colour: str, x: float, y: float, words: str = "") -> str:
    title = [element("title", safe(words))] if words else []
    place = f"translate({x:.5g} {y + 9:.5g})"
    return element("path", *title, d=_SIGNS[name], class_=f"sign hollow {colour}", transform=place)
