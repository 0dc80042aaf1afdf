"""Number formats: what fp32, fp16, bf16, float8 and int8 store of a number, and which gradients a loss scale saves."""

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
from pydantic import Field

from hornbook.errors import UsageError
from hornbook.settings.fields import Config, parse_number
from hornbook.studio.explore.explorer import Preset, explorer, slider
from hornbook.studio.explore.float_formats import (
    BF16,
    FORMATS,
    FP16,
    Format,
    Int8,
    number_text,
    numbers_between,
    outcome,
    relative_errors,
)
from hornbook.studio.explore.views import Answer, Columns, Curves, Line, Mark, Table

POINTS = 240
"""Points of a curve."""
BEYOND = 1e60
"""Numbers of a question are smaller."""
GRADIENTS = np.geomspace(1e-12, 10.0, POINTS)


class NumberFormatsQuestion(Config):
    """A number to store, and a gradient that the loss scale multiplies."""

    number: str = Field(default="3.14159265", max_length=60)
    """A number such as `0.1`, or a range such as `0.001:1000`."""
    largest: float = slider(8.0, 1e-3, 1e4, logarithmic=True)
    """Largest magnitude of the tensor that contains the number. int8 stores it as 127."""
    gradient: float = slider(1e-8, 1e-12, 10.0, logarithmic=True)
    """Magnitude of a gradient."""
    loss_scale: float = slider(65536.0, 1.0, 2.0**24, logarithmic=True)
    """Factor on the loss, and so on all gradients of the backward pass. Training in fp16 starts with 65,536."""


def _read(text: str) -> list[float]:
    """The number, or both ends of the range. Raises UsageError."""
    try:
        ends = [float(parse_number(word)) for word in text.split(":")]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2) or ends != sorted(set(ends)) or not all(abs(each) < BEYOND for each in ends):
        hint = f"write a number such as 0.1, or a range from low to high such as 0.001:1000, below {BEYOND:g}"
        raise UsageError(f"number = {text[:60]}: {hint}")
    return ends


@explorer(
    "Number formats",
    asks="What does each number format store of a number, and which gradients does a loss scale save from zero?",
    code=("studio.explore.float_formats:Format", "studio.explore.float_formats:Int8", "kernels.scalar:store"),
    presets=(
        Preset("One tenth", {"number": "0.1"}),
        Preset("All magnitudes of fp16", {"number": "1e-8:1e5"}),
        Preset("A gradient that fp16 loses", {"gradient": 1e-8, "loss_scale": 1}, "Micikevicius et al. 2018"),
    ),
)
def number_formats(question: NumberFormatsQuestion) -> Answer:
    """A floating-point number has a sign, an exponent and a mantissa. More bits of exponent give a larger range; more
    bits of mantissa make the steps between neighbours smaller. bf16 has the range of fp32 with few digits; fp16 has
    more digits and a small range, so small gradients become zero. Multiplying the loss by a scale multiplies all
    gradients, which lifts them into the range; before the update they are divided by the scale again. A scale that is
    too large makes gradients infinite."""
    formats, ends = [*FORMATS, Int8(question.largest)], _read(question.number)
    stored, errors = (
        (_stored_numbers(ends[0], formats), None) if len(ends) == 1 else _stored_range(ends[0], ends[1], formats)
    )
    limits = [[f.name, f.largest, f.smallest_normal, f.smallest, 2.0**-f.mantissa] for f in FORMATS]
    limits.append(["int8", question.largest, None, float(formats[-1].nearest(question.largest)) / 127, None])
    gradient, rows, saved = question.gradient, list[list[Any]](), list[Line]()
    for form, factor in product((FP16, BF16), (1.0, question.loss_scale)):
        value, name = float(form.nearest(gradient * factor)), f"{form.name}, scale {factor:,.10g}"
        rows.append([name, number_text(value), outcome(form, value)])
        rows[-1] += relative_errors(form, np.array([gradient]), factor)
        saved.append(Line(name=name, x=GRADIENTS.tolist(), y=relative_errors(form, GRADIENTS, factor)))
    least = 2.0 ** math.ceil(math.log2(FP16.smallest_normal / gradient))
    most = 2.0 ** math.floor(math.log2(FP16.largest / gradient))
    note = f"Powers of two from {least:,g} to {most:,g} keep it in fp16 with all digits. Errors are after the division."
    return Answer(
        stored=stored,
        errors=errors,
        limits=Table(
            title="Limits",
            columns={"format": None, "largest": "operations", "smallest normal": "", "smallest": "", "step at 1": ""},
            rows=limits,
        ),
        gradients=Table(
            title=f"A gradient of {gradient:g}",
            note=note,
            columns={"format": None, "stored": "", "outcome": None, "relative error": "share"},
            rows=rows,
        ),
        saved=Curves(
            title="Relative error of gradients",
            curves=saved,
            x="magnitude of the gradient",
            y_unit="share",
            logarithmic="x",
            marks=[Mark(x=gradient, name="this gradient")],
        ),
    )


def _stored_numbers(value: float, formats: Sequence[Format | Int8]) -> Table:
    """What each format stores of a number: nearest number, error, bits."""
    rows = list[list[Any]]()
    for form in formats:
        nearest, (error,) = float(form.nearest(value)), relative_errors(form, np.array([value]))
        difference = abs(nearest - value) if math.isfinite(nearest) else None
        rows.append([form.name, number_text(nearest), difference, error, form.bits(value)])
    note = "Bits are sign, exponent and mantissa; the bits of int8 are an integer. Ties go to the even mantissa."
    title = f"{number_text(value)} in each format"
    columns: Columns = {"format": None, "nearest number": "", "error": "", "relative error": "share", "bits": None}
    return Table(title=title, note=note, columns=columns, rows=rows)


def _stored_range(low: float, high: float, formats: Sequence[Format | Int8]) -> tuple[Table, Curves]:
    """(numbers that each format has in a range, relative error over the range)."""
    log = "x" if low > 0 and high / low > 10 else ""
    values = np.geomspace(low, high, POINTS) if log else np.linspace(low, high, POINTS)
    errors = {form.name: relative_errors(form, values) for form in formats}
    worst = [max((error for error in errors[form.name] if error is not None), default=None) for form in formats]
    rows = [[f.name, numbers_between(f, low, high), error] for f, error in zip(formats, worst, strict=True)]
    title = f"{number_text(low)} to {number_text(high)}"
    note = f"Errors are measured at {POINTS} points; 100 % is stored as zero."
    columns: Columns = {"format": None, "numbers in the range": "count", "largest relative error": "share"}
    curves = [Line(name=name, x=values.tolist(), y=each) for name, each in errors.items()]
    return (
        Table(title=title, note=note, columns=columns, rows=rows),
        Curves(title="Relative error", curves=curves, x="number", y_unit="share", logarithmic=log),
    )
