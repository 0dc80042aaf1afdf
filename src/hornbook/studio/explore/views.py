"""The parts of an explorer's answer: numbers, bars, curves, a timeline, a table, a grid, texts.

Page and terminal draw all of them. Values are plain numbers in a unit; `words` is the one place that writes them.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator

from hornbook.plan.search.number_words import duration, figure, short
from hornbook.settings.fields import Config

Unit = Literal["", "bytes", "seconds", "share", "count", "operations"]
"""`count` is written as 1.46 B, the unit "" in three digits."""
Value = float | int | str | None


def words(value: Value, unit: Unit = "") -> str:
    """A value as people read it; "" for None."""
    if value is None or isinstance(value, str):
        return value or ""
    return _WRITTEN[unit](value)


def _bytes(value: float) -> str:
    if value < 0:
        return f"-{_bytes(-value)}"
    for name, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if value >= size:
            return f"{figure(value / size)} {name}"
    return f"{value:,.0f} B"


def _plain(value: float) -> str:
    if value and abs(value) < 0.001:
        return f"{value:.3g}"
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


_WRITTEN: dict[Unit, Callable[[float], str]] = {
    "": _plain,
    "bytes": _bytes,
    "seconds": duration,
    "share": lambda value: f"{100 * value:.3g} %",
    "count": lambda value: short(value) if value >= 10_000 else f"{value:,.6g}",
    "operations": lambda value: f"{value:.3g}",
}


class View(Config):
    """A part of an answer."""

    title: str
    note: str = ""
    """A sentence below it."""


class Fact(Config):
    """A number with its name."""

    name: str
    value: Value
    unit: Unit = ""

    @property
    def text(self) -> str:
        """The value as people read it."""
        return words(self.value, self.unit)


def fact(name: str, value: Value, unit: Unit = "") -> Fact:
    """A number with its name."""
    return Fact(name=name, value=value, unit=unit)


class Facts(View):
    """A few numbers."""

    kind: Literal["facts"] = "facts"
    facts: Sequence[Fact]

    def __getitem__(self, name: str) -> Value:
        """The value of the fact of that name."""
        return next(each.value for each in self.facts if each.name == name)


class Bar(Config):
    """One bar of parts that are stacked."""

    name: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        """The whole bar."""
        return sum(self.parts.values())


class Bars(View):
    """Bars of stacked parts, in one unit."""

    kind: Literal["bars"] = "bars"
    bars: Sequence[Bar]
    unit: Unit = "bytes"
    limit: float | None = None
    """A line that bars should not cross."""


class Line(Config):
    """A curve through points, or the points alone."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    """None, also in place of infinity and of what is no number, breaks the curve."""
    points: bool = False
    labels: Sequence[str] = ()
    """A text of each point."""

    @field_validator("y", mode="before")
    @classmethod
    def _finite(cls, values: Sequence[float | None]) -> list[float | None]:
        return [value if value is not None and math.isfinite(value) else None for value in values]


class Mark(Config):
    """A place on the x axis with a name."""

    x: float
    name: str


class Curves(View):
    """Curves over one x axis."""

    kind: Literal["curves"] = "curves"
    curves: Sequence[Line]
    x: str
    """What the x axis counts."""
    x_unit: Unit = "count"
    y_unit: Unit = ""
    logarithmic: Literal["", "x", "y", "xy"] = ""
    marks: Sequence[Mark] = ()
    filled: bool = False
    """Stack the curves as areas."""


class Span(Config):
    """A piece of time in a row."""

    row: int
    start: float
    end: float
    kind: str
    """What happens; equal kinds have one colour."""
    text: str = ""


class Timeline(View):
    """Pieces of time in rows."""

    kind: Literal["timeline"] = "timeline"
    rows: Sequence[str]
    spans: Sequence[Span]
    unit: Unit = ""


Columns = Mapping[str, Unit | None]
"""Name of a column -> unit of its numbers; None: a column of texts."""


class Table(View):
    """Rows of values."""

    kind: Literal["table"] = "table"
    columns: Columns
    rows: Sequence[Sequence[Value]]
    chosen: int | None = None
    """A row to point out."""

    @property
    def texts(self) -> list[list[str]]:
        """The rows as people read them."""
        units: list[Unit] = [unit or "" for unit in self.columns.values()]
        return [[words(value, unit) for value, unit in zip(row, units, strict=True)] for row in self.rows]


class Cell(Config):
    """A square of a grid: `group` chooses its colour, or `share` (0 to 1) how dark it is."""

    text: str = ""
    group: int | None = None
    share: float | None = None
    label: str = ""
    """What a reader of the screen says."""


class Grid(View):
    """Squares in rows and columns."""

    kind: Literal["grid"] = "grid"
    rows: Sequence[str]
    columns: Sequence[str]
    cells: Sequence[Sequence[Cell]]


class Passage(Config):
    """A text with a heading."""

    name: str
    text: str


class Passages(View):
    """Texts, such as documents or remedies."""

    kind: Literal["passages"] = "passages"
    passages: Sequence[Passage]


AnyView = Annotated[Facts | Bars | Curves | Timeline | Table | Grid | Passages, Field(discriminator="kind")]


class Answer(Config, extra="allow"):
    """Views by name, shown in their order; None for a view that a question does not have."""

    def __init__(self, **views: View | None) -> None:
        super().__init__(**views)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    def views(self) -> dict[str, View]:
        """Name -> view, without those that are None."""
        return {name: view for name, view in self if isinstance(view, View)}
