"""`hornbook prepare curve`: what stays as a threshold moves."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from hornbook.cli.shell import Json, answer
from hornbook.errors import UsageError

VOCABULARY = ("different words", "running words")


def curve(
    data: Annotated[Path, typer.Argument(metavar="DATA", help="A folder that prepare wrote.")],
    threshold: Annotated[str, typer.Argument(metavar="STEP.KEY", help="Such as gopher_quality.min_words.")],
    values: Annotated[
        list[float] | None, typer.Argument(metavar="[VALUE]...", help="By default around today's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Say how many documents stay for each value of a threshold, of which sources and languages, and of which words.

    What of the vocabulary stays is estimated where {kind = "vocabulary"} is one of the steps, with 95 % intervals.
    From the columns that prepare stored: no text is read, and nothing is changed.
    """
    from hornbook.text.folder import read_text_config
    from hornbook.text.refinery.curve import curve as points_of
    from hornbook.text.refinery.curve import numbers, read_signals

    name, dot, key = threshold.rpartition(".")
    if not dot:
        raise UsageError(f"{threshold!r} is no STEP.KEY, such as gopher_quality.min_words")
    step, signals = read_signals(data, read_text_config(data).steps, name)
    now = numbers(step.config).get(key)
    if values is None and now is not None:
        values = [float(f"{now * factor:.3g}") for factor in (0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 2, 4)]
    points = points_of(step, signals, key, values or [0.0])
    rows = [_row(asdict(point), now) for point in points]
    header = ("value", "documents", "share", "bytes", *(VOCABULARY if signals.words else ()), "least kept")
    from hornbook.cli.runs import columns

    value = {"data": str(data), "threshold": threshold, "now": now, "points": [asdict(point) for point in points]}
    answer(value, columns([header, *rows]), as_json=as_json)


def _row(point: dict[str, Any], now: float | None) -> tuple[str, ...]:
    mark = " (now)" if point["value"] == now else ""
    worst = sorted(point["groups"].items(), key=lambda item: item[1])[:3]
    lost = ", ".join(f"{name} {share:.0%}" for name, share in worst)
    words = _words(point["words"]) if point["words"] else ()
    return (
        f"{point['value']:g}{mark}",
        f"{point['documents']:,}",
        f"{point['share']:.1%}",
        f"{point['bytes']:,}",
        *words,
        lost,
    )


def _words(found: dict[str, float]) -> tuple[str, ...]:
    return tuple(f"{found[name]:.1%} +-{found[f'{name}_error'] * 100:.1f}" for name in ("vocabulary", "running"))
