"""Answers of explorers as text for a terminal: the same values that the page draws."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hornbook.studio.explore.views import (
    Answer,
    Bars,
    Cell,
    Curves,
    Facts,
    Grid,
    Passages,
    Table,
    Timeline,
    View,
    words,
)

WIDTH = 64
"""Characters of a bar or a timeline."""
LETTERS = "█▓▒░▚▞◆◇●○"
"""Fillings of the parts of a bar, of kinds of spans."""
BLOCKS = " ▁▂▃▄▅▆▇█"


def answer_text(answer: Answer) -> str:
    """All views, one below the other."""
    return "\n\n".join("\n".join(_lines(view)) for view in answer.views().values())


def _lines(view: View) -> Iterator[str]:
    yield view.title
    yield from _DRAWN[type(view)](view)
    if view.note:
        yield f"  {view.note}"


def _facts(view: Facts) -> Iterator[str]:
    width = max(len(each.name) for each in view.facts)
    for each in view.facts:
        yield f"  {each.name.ljust(width)}  {each.text}"


def _bars(view: Bars) -> Iterator[str]:
    most = max([each.total for each in view.bars] + [view.limit or 0.0]) or 1.0
    names = list(dict.fromkeys(name for each in view.bars for name, value in each.parts.items() if value))
    width = max(len(each.name) for each in view.bars)
    for each in view.bars:
        bar, done = "", 0.0
        for name, value in each.parts.items():
            done += value
            if value:
                bar += LETTERS[names.index(name) % len(LETTERS)] * (round(WIDTH * done / most) - len(bar))
        yield f"  {each.name.ljust(width)}  {bar.ljust(WIDTH)}  {words(each.total, view.unit)}"
    if view.limit:
        yield f"  {''.ljust(width)}  {'|'.rjust(round(WIDTH * view.limit / most))} {words(view.limit, view.unit)}"
    yield _letters(names)


def _letters(names: Sequence[str]) -> str:
    """A line that says which letter stands for which name."""
    return "  " + "  ".join(f"{LETTERS[i % len(LETTERS)]} {name}" for i, name in enumerate(names))


def _curves(view: Curves) -> Iterator[str]:
    width = max(len(each.name) for each in view.curves)
    for each in view.curves:
        values = [value for value in each.y if value is not None]
        if not values:
            continue
        low, high = min(values), max(values)
        thinned = values if len(values) <= WIDTH else [values[i * len(values) // WIDTH] for i in range(WIDTH)]
        line = "".join(BLOCKS[1 + round(7 * (value - low) / ((high - low) or 1))] for value in thinned)
        yield f"  {each.name.ljust(width)}  {line}  {words(low, view.y_unit)} to {words(high, view.y_unit)}"
    ends = [each.x[0] for each in view.curves if each.x], [each.x[-1] for each in view.curves if each.x]
    low, high = min(ends[0], default=None), max(ends[1], default=None)
    yield f"  {view.x}: {words(low, view.x_unit)} to {words(high, view.x_unit)}"
    yield from (f"  at {words(mark.x, view.x_unit)}: {mark.name}" for mark in view.marks)


def _timeline(view: Timeline) -> Iterator[str]:
    end = max((each.end for each in view.spans), default=1.0) or 1.0
    kinds = list(dict.fromkeys(each.kind for each in view.spans))
    width, room = max(map(len, view.rows)), WIDTH + 24
    for number, name in enumerate(view.rows):
        line = ["·"] * room
        for each in (each for each in view.spans if each.row == number):
            first = round(room * each.start / end)
            length = max(round(room * each.end / end) - first, 1)
            text = each.text if length > len(each.text) else ""
            filling = text.ljust(length, LETTERS[kinds.index(each.kind) % len(LETTERS)])
            line[first : first + length] = filling[: max(room - first, 0)]
        yield f"  {name.ljust(width)}  {''.join(line[:room])}"
    yield f"{_letters(kinds)}  · waiting; in all {words(end, view.unit)}"


def _table(view: Table) -> Iterator[str]:
    rows, units = [[*view.columns], *view.texts], view.columns.values()
    widths = [max(map(len, words)) for words in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = [
            word.ljust(width) if unit is None else word.rjust(width)
            for word, width, unit in zip(row, widths, units, strict=True)
        ]
        yield f"{'>' if view.chosen is not None and number == view.chosen + 1 else ' '} {'  '.join(cells).rstrip()}"


def _filling(cell: Cell) -> str:
    if cell.share is not None:
        return BLOCKS[round(8 * cell.share)]
    return "" if cell.group is None else "■"


def _grid(view: Grid) -> Iterator[str]:
    texts = [[each.text or _filling(each) for each in row] for row in view.cells]
    width = max([len(text) for row in texts for text in row] + [len(name) for name in view.columns] + [1])
    left = max(map(len, view.rows))
    yield f"  {''.ljust(left)}  {' '.join(name.rjust(width) for name in view.columns)}"
    for name, row in zip(view.rows, texts, strict=True):
        yield f"  {name.ljust(left)}  {' '.join(text.rjust(width) for text in row)}"


def _passages(view: Passages) -> Iterator[str]:
    for each in view.passages:
        yield f"  {each.name}"
        yield from (f"    {line}" for line in each.text.splitlines())


_DRAWN: dict[type[View], Callable[[Any], Iterator[str]]] = {
    Facts: _facts,
    Bars: _bars,
    Curves: _curves,
    Timeline: _timeline,
    Table: _table,
    Grid: _grid,
    Passages: _passages,
}
