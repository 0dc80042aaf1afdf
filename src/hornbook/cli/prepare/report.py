"""`hornbook prepare report | curve`: what was dropped, as a page and a data card; what another threshold would keep."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from hornbook.cli.result import Result, columns
from hornbook.cli.shell import Data
from hornbook.errors import UsageError
from hornbook.files.durable import write_atomic


def report(
    data: Data,
    out: Annotated[Path | None, typer.Option(metavar="FOLDER", help="By default DATA.")] = None,
) -> Result:
    """Write report.html (the funnel, and examples and precision of every rule) and DATA_CARD.md."""
    from hornbook.text.refinery.pipeline.folder import CARD, PAGE
    from hornbook.text.refinery.report.report import card, page, read_receipt

    receipt = read_receipt(data)
    folder = out or data
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / PAGE, page(receipt))
    write_atomic(folder / CARD, card(receipt))
    value = {"page": str(folder / PAGE), "card": str(folder / CARD)}
    return Result(value, f"{value['page']}\n{value['card']}")


def curve(
    data: Data,
    threshold: Annotated[str, typer.Argument(metavar="STEP.KEY", help="Such as gopher_quality.min_words.")],
    values: Annotated[
        list[float] | None, typer.Argument(metavar="VALUE", help="By default some around the current value.")
    ] = None,
) -> Result:
    """Count the documents kept for each value of a threshold, by source and language.

    With a step {kind = "vocabulary"}, also estimate the share of the vocabulary kept, with 95 % intervals.
    It uses the columns that prepare stored: it reads no text and changes nothing.
    """
    from hornbook.text.refinery.pipeline.folder import read_text_config
    from hornbook.text.refinery.scores.curve import around, curve_table, numbers, read_signals
    from hornbook.text.refinery.scores.curve import curve as points_of

    name, dot, key = threshold.rpartition(".")
    if not dot:
        raise UsageError(f"{threshold!r}: write STEP.KEY, such as gopher_quality.min_words")
    step, signals = read_signals(data, read_text_config(data).steps, name)
    now = numbers(step.config).get(key)
    if values is None and now is not None:
        values = around(now)
    points = points_of(step, signals, key, values or [0.0])
    value = {"data": str(data), "threshold": threshold, "now": now, "points": [asdict(point) for point in points]}
    return Result(value, columns(curve_table(points, now)))
