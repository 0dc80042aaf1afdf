"""`hornbook runs plot`: the curves of runs as a picture or a page."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, say
from hornbook.errors import HornbookError, UsageError
from hornbook.files.durable import write_atomic
from hornbook.files.run_directory import RunDir

if TYPE_CHECKING:
    from hornbook.studio.curve_history import History


def plot(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN", help="Run directories, in the order of the legend.")],
    *,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File to write: a picture (.svg) or a page (.html).")],
    x: Annotated[Literal["step", "tokens"], typer.Option(help="The horizontal axis.")] = "step",
    log: Annotated[bool, typer.Option("--log", help="A logarithmic axis for the loss.")] = False,
    dry_run: DryRun = False,
) -> Result:
    """Plot loss, validation by source, gradient norm, learning rate, speed and events of runs.

    Long runs are thinned, but each place keeps its smallest and largest value, so every spike remains. A page also
    shows the values under the pointer. Neither needs a network. A run that cannot be read is named and left out.
    """
    from hornbook.studio.chart import page, picture
    from hornbook.studio.page_layout import make_chart

    if out.suffix not in (".svg", ".html"):
        raise UsageError(f"--out {out}: the name must end with .svg (a picture) or .html (a page)")
    histories, problems = _read(runs, x)
    chart = make_chart(histories, x, log=log)
    names = [run.name for run in histories]
    value = {"out": str(out), "runs": names, "figures": chart.describe(), "left_out": problems}
    if not dry_run:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(out, page(chart) if out.suffix == ".html" else picture(chart))
    figures = f"would write {out}: {', '.join(chart.describe())}" if dry_run else str(out)
    return Result(value, figures)


def _read(paths: list[Path], x: Literal["step", "tokens"]) -> tuple[list["History"], dict[str, str]]:
    """(histories of the readable runs, with distinct names; path -> problem of the others)."""
    from rich.markup import escape

    from hornbook.studio.curve_history import read_history

    found: dict[Path, History] = {}
    problems: dict[str, str] = {}
    for path in dict.fromkeys(paths):
        try:
            if not RunDir(path).exists():
                raise UsageError("it holds no run")
            found[path] = read_history(RunDir(path), x)
        except (HornbookError, OSError) as error:
            problems[str(path)] = str(error)
            say(escape(f"{path} is left out: {error}"))
    if not found:
        raise UsageError("there is nothing to plot: `hornbook runs ls FOLDER` lists runs")
    names = [history.name for history in found.values()]
    alike = {name for name in names if names.count(name) > 1}
    return [
        replace(history, name=str(path)) if history.name in alike else history for path, history in found.items()
    ], problems
