"""`hornbook plan --scale`: tables and a picture of how a run scales, simulated."""

from pathlib import Path

from hornbook.cli.plan.table import halved, room, wrapped
from hornbook.cli.result import Result
from hornbook.errors import Exit, UsageError
from hornbook.files.durable import writing
from hornbook.plan.at_scale.simulation import Point, Scaling, device_counts, simulate_scaling
from hornbook.plan.devices.hardware import Cluster
from hornbook.plan.search.number_words import duration, short, step_time
from hornbook.plan.search.space import fixed_parts
from hornbook.settings.resolve import Resolved

TITLES = {
    "strong": "strong scaling: the batch stays as it is",
    "weak": "weak scaling: each device keeps its tokens",
}
STEP_COLUMNS = "devices", "layout", "batch", "step", "compute", "messages", "bubble"
RUN_COLUMNS = "tokens/s", "efficiency", "MFU", "fails every", "save every", "goodput", "time"


def scale_result(resolved: Resolved, cluster: Cluster, span: str | None, plot: Path | None) -> Result:
    """The tables of both kinds of scaling; `plot`: an SVG file to write. Exit code 4: no point fits.

    What the command line sets of a layout stays, the rest is chosen for each number of devices.

    Raises UsageError.
    """
    from hornbook.studio.scale_chart import scale_picture

    if span is None:
        raise UsageError("--plot draws what --scale simulates: give both")
    if plot is not None and plot.suffix != ".svg":
        raise UsageError(f"--plot {plot}: the name must end with .svg")
    found = simulate_scaling(resolved.recipe, cluster, device_counts(span), fixed_parts(resolved))
    if plot is not None:
        with writing(plot) as file:
            file.write(scale_picture(found).encode())
    notes = [] if plot is None else [f"written: {plot}"]
    fits = any(point.fits for curve in found.curves for point in curve.points)
    code = Exit.DONE if fits else Exit.DOES_NOT_FIT
    return Result(found.model_dump(mode="json"), scaling_text(found, room()), code=code, notes=notes)


def scaling_text(found: Scaling, room: int | None = None) -> str:
    """The tables for people; room: characters of a line."""
    lines = [f"{found.name} on {found.cluster.device.name}: a simulation, nothing of it was measured"]
    for curve in found.curves:
        rows = [[*STEP_COLUMNS, *RUN_COLUMNS], *map(_row, curve.points)]
        lines += ["", TITLES[curve.kind], halved(rows, len(STEP_COLUMNS), room)]
    none = f"no point fits {found.cluster.device.name}: --cluster 8xH100 names other devices and their machines"
    lines += ["", f"failures as {found.mtbf_source}" if found.mtbf_source else none]
    return "\n".join(
        wrapped(each, room) for each in [*lines, "neither slow ranks nor a network that others use are simulated"]
    )


def _row(point: Point) -> list[str]:
    layout, upkeep, cells = point.layout, point.upkeep, [f"{point.devices:,}"]
    if layout is None or upkeep is None:
        reason = "does not fit" if layout is not None else "no layout divides the batch"
        return [*cells, reason, short(point.batch_tokens), *[""] * 11]
    step = layout.step
    shares = [step.compute + step.recompute + step.update, step.tensor + step.data, step.bubble]
    return [
        *cells,
        f"{layout.name}{', block' if layout.recompute == 'block' else ''}",
        short(point.batch_tokens),
        step_time(step.total),
        *(f"{each / step.total:.0%}" for each in shares),
        short(layout.tokens_per_second),
        f"{point.efficiency:.0%}",
        f"{layout.mfu:.0%}",
        duration(upkeep.mtbf_seconds),
        duration(upkeep.interval_seconds),
        f"{upkeep.goodput:.1%}",
        "" if point.days is None else duration(86400 * point.days),
    ]
