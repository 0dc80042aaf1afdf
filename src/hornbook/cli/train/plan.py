"""`hornbook plan`: memory, time and cost of a run on a cluster, before it starts. No torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.plan.numbers import seconds_text, short
from hornbook.cli.plan.scale import scale_result
from hornbook.cli.result import Result, columns
from hornbook.cli.shell import Words, resolve_words
from hornbook.errors import Exit, UsageError

if TYPE_CHECKING:
    from hornbook.plan.hardware import Cluster
    from hornbook.plan.search.result import Layout, Plan
    from hornbook.settings.resolve import Resolved

BAR = 34
"""Characters of a bar as long as the device's memory."""
LETTERS = {
    "weights": "W",
    "gradients": "G",
    "optimizer": "O",
    "activations": "A",
    "logits": "L",
    "temporaries": "T",
    "communication": "C",
    "runtime": "R",
}
LAYOUT = tuple(f"parallel.{name}" for name in ("data", "shard", "replicas", "tensor", "pipeline", "context", "expert"))
"""Settings by which a recipe has a layout of its own."""
GIB = 2**30


def plan(
    words: Words = None,
    *,
    cluster: Annotated[
        str, typer.Option(metavar="8xH100|64x8xH100|this", help="Devices: a number, machines x devices, or this one.")
    ] = "this",
    price: Annotated[
        float | None, typer.Option(metavar="DOLLARS", min=0, help="Of an hour of one device, in place of the table's.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show phases, parts of a step, failures, and what is assumed.")
    ] = False,
    scale: Annotated[
        str | None, typer.Option(metavar="8..100000", help="Simulate weak and strong scaling over such devices.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="With --scale: a picture to write (.svg).")] = None,
) -> Result:
    """Predict memory, time and cost of a run. Nothing is computed: it is arithmetic on the recipe and data sheets.

    Where the recipe leaves the layout open, the layouts that fill the cluster are compared. Exit code 4: it does not
    fit, and the smallest cluster is named on which it would.
    """
    from hornbook.plan.hardware import parse_cluster
    from hornbook.plan.planner import plan_run
    from hornbook.plan.search.anchor import anchored

    devices = parse_cluster(cluster)
    resolved = resolve_words(words)
    if scale is not None:
        return scale_result(resolved.recipe, devices, scale, plot)
    if plot is not None:
        raise UsageError("--plot draws what --scale simulates: give both")
    fixed = any(key.startswith(LAYOUT) and origin != "default" for key, origin in resolved.origins.items())
    if fixed:
        resolved = _filled(resolved, devices)
    found = plan_run(resolved.recipe, devices, search=not fixed and devices.count > 1, price=price)
    found = anchored(found, resolved.recipe, devices)
    notes = [f"[yellow]![/] {text}" for text in found.warnings]
    code = Exit.DONE if found.best.fits else Exit.DOES_NOT_FIT
    if not found.best.fits:
        fit = f"it fits on {found.remedy}" if found.remedy else "no number of these devices holds it"
        notes.append(f"[red]does not fit[/] {cluster}: {fit}")
    return Result(found.record(), plan_text(found, explain=explain), code=code, notes=notes)


def _filled(resolved: "Resolved", devices: "Cluster") -> "Resolved":
    """The recipe with an axis of -1, or `parallel.data`, as many as there are devices. Raises UsageError."""
    from hornbook.settings.layout.world import check_world, fill_world

    resolved = fill_world(resolved, devices.count, "--cluster", data=True)
    if not devices.device.is_cpu:
        check_world(resolved.recipe.parallel, devices.count, f"--cluster has {devices.count} devices")
    return resolved


def plan_text(found: "Plan", *, explain: bool = False) -> str:
    """The table for people."""
    device = found.cluster.device
    length = "" if found.tokens is None else f", {short(found.tokens)} tokens"
    header = (
        f"{found.name}: {short(found.parameters)} parameters{length}, {found.batch_tokens:,} tokens a step, "
        f"{found.cluster} of {device.memory:.0f} GiB"
    )
    rows = [["layout", "micro", "recompute", "memory", "GiB", "step", "tokens/s", "MFU", "time", "cost"]]
    rows += [_row(found, each) for each in found.layouts]
    legend = "  ".join(f"{letter} {name}" for name, letter in LETTERS.items())
    lines = [header, "", columns(rows), "", legend]
    rate = f"{device.rate('auto') / 1e12:,.0f} TFLOP/s" if not device.is_cpu else f"{device.fp32:.3f} TFLOP/s fp32"
    lines.append(f"device: {rate}, {device.bandwidth:,.0f} GB/s; {device.source}")
    if found.anchor:
        lines.append(found.anchor)
    if found.price is not None:
        lines.append(f"price: ${found.price:.2f} an hour of one device ({found.price_source}; --price sets another)")
    return "\n".join([*lines, *(_explained(found) if explain else [])])


def _row(found: "Plan", each: "Layout") -> list[str]:
    peak, seconds, cost = each.worst.peak.total, found.seconds(each), found.cost(each)
    return [
        each.name,
        str(each.micro_batch),
        each.recompute,
        bar(each, found.cluster.device.memory_bytes),
        f"{peak / GIB:.1f}" if peak > GIB else f"{peak / GIB:.2f}",
        seconds_text(each.step.total) if each.fits else "OOM",
        f"{each.tokens_per_second:,.0f}" if each.fits else "",
        f"{each.mfu:.0%}" if each.fits else "",
        seconds_text(seconds) if seconds is not None and each.fits else "",
        f"${cost:,.0f}" if cost is not None and each.fits else "",
    ]


def bar(layout: "Layout", capacity: int) -> str:
    """A letter for each part of the device's memory, up to its end; + for what is beyond."""
    peak, text = layout.worst.peak, ""
    done = 0
    for name, letter in LETTERS.items():
        done += getattr(peak, name)
        text += letter * (min(round(BAR * done / capacity), BAR) - len(text))
    return (text + "+" if done > capacity else text).ljust(BAR, ".")


def _explained(found: "Plan") -> list[str]:
    """Phases of the fullest rank, parts of a step, and what the figures rest on."""
    best = found.best
    worst = best.worst
    rows = [["GiB by phase", *worst.phases]]
    for name in LETTERS:
        sizes = [getattr(phase, name) for phase in worst.phases.values()]
        if any(sizes):
            rows.append([name, *(f"{size / GIB:.2f}" for size in sizes)])
    rows.append(["all", *(f"{phase.total / GIB:.2f}" for phase in worst.phases.values())])
    parts = ", ".join(f"{name} {seconds_text(value)}" for name, value in best.step if value)
    energy = found.kilowatt_hours(best)
    return [
        "",
        f"{best.name}: stage {worst.rank} holds most, at the peak in phase {worst.peak_phase!r}",
        columns(rows),
        f"a step: {parts}",
        f"MFU {best.mfu:.1%} (pairs that see each other), {best.mfu_palm:.1%} (all pairs, PaLM); HFU {best.hfu:.1%}",
        *([f"energy {energy:,.0f} kWh of the devices"] if energy else []),
        *_upkeep(found),
    ]


def _upkeep(found: "Plan") -> list[str]:
    """Failures, checkpoints and data."""
    upkeep, seconds = found.upkeep, found.seconds(found.best)
    if upkeep is None:
        return []
    expected = "" if seconds is None else f", {upkeep.failures(seconds):.3g} in this run"
    whole = "" if seconds is None else f", {seconds_text(86400 * upkeep.days(seconds))} in all"
    stall, write, interval, restart = (
        seconds_text(each)
        for each in (upkeep.stall_seconds, upkeep.write_seconds, upkeep.interval_seconds, upkeep.restart_seconds)
    )
    size = upkeep.checkpoint_bytes / GIB
    return [
        f"failures: one in {seconds_text(upkeep.mtbf_seconds)}{expected}; as {upkeep.mtbf_source}",
        f"checkpoints of {size:.3g} GiB: one holds the loop {stall}, is written in {write}, best every {interval}",
        f"goodput {upkeep.goodput:.2%}{whole}: a restart takes {restart}; "
        f"the loader reads {upkeep.loader_rate / 1e6:.3g} MB/s",
    ]
