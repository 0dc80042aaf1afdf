"""Tables and curves of what number formats store."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from hornbook.studio.explore.float_formats import Format, Int8, number_text, numbers_between, relative_errors
from hornbook.studio.explore.views import Column, Curves, Line, Table, Unit

POINTS = 240
"""Points of a curve."""


def table_of(title: str, note: str, rows: list[list[Any]], **columns: Unit | None) -> Table:
    """A table with units by column; None: a column of text."""
    made = [
        Column(name=name.replace("_", " "), unit=unit or "", number=unit is not None) for name, unit in columns.items()
    ]
    return Table(title=title, note=note, columns=made, rows=rows)


def stored_numbers(value: float, formats: Sequence[Format | Int8]) -> Table:
    """What each format stores of a number: nearest number, error, bits."""
    rows = list[list[Any]]()
    for form in formats:
        nearest, (error,) = float(form.nearest(value)), relative_errors(form, np.array([value]))
        difference = abs(nearest - value) if math.isfinite(nearest) else None
        rows.append([form.name, number_text(nearest), difference, error, form.bits(value)])
    note = "Bits are sign, exponent and mantissa; the bits of int8 are an integer. Ties go to the even mantissa."
    title = f"{number_text(value)} in each format"
    return table_of(title, note, rows, format=None, nearest_number="", error="", relative_error="share", bits=None)


def stored_range(low: float, high: float, formats: Sequence[Format | Int8]) -> tuple[Table, Curves]:
    """(numbers that each format has in a range, relative error over the range)."""
    log = "x" if low > 0 and high / low > 10 else ""
    values = np.geomspace(low, high, POINTS) if log else np.linspace(low, high, POINTS)
    errors = {form.name: relative_errors(form, values) for form in formats}
    worst = [max((error for error in errors[form.name] if error is not None), default=None) for form in formats]
    rows = [[f.name, numbers_between(f, low, high), error] for f, error in zip(formats, worst, strict=True)]
    title, note = (
        f"{number_text(low)} to {number_text(high)}",
        f"Errors are measured at {POINTS} points; 100 % is stored as zero.",
    )
    table = table_of(title, note, rows, format=None, numbers_in_the_range="count", largest_relative_error="share")
    curves = [Line(name=name, x=values.tolist(), y=each) for name, each in errors.items()]
    return table, Curves(title="Relative error", curves=curves, x="number", y_unit="share", logarithmic=log)
