"""`hornbook plan`: memory, time and cost of a run on a cluster, before it starts. No torch."""

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.plan.budget import Budgets, LawFile, PreparedText, Served, Size, budget_result, sized
from hornbook.cli.plan.scale import Plot, Scale, scale_result
from hornbook.cli.result import Result, columns
from hornbook.cli.shell import Words, resolve_words, split_target
from hornbook.errors import Exit
from hornbook.plan.numbers import duration, short

if TYPE_CHECKING:
    from rich.text import Text

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
COLORS = {
    "weights": "blue",
    "gradients": "cyan",
    "optimizer": "magenta",
    "activations": "green",
    "logits": "yellow",
    "temporaries": "red",
    "communication": "bright_blue",
    "runtime": "bright_black",
}
_BARS = re.compile(f"(?<= )[{''.join(LETTERS.values())}]+[.+]*(?=  )")
_LEGEND = re.compile(f"(?<=  )[{''.join(LETTERS.values())}](?= )")
BESIDE = 96
"""Characters of a row beside its bar."""
LAYOUT = tuple(f"parallel.{name}" for name in ("data", "shard", "replicas", "tensor", "pipeline", "context", "expert"))
"""Settings by which a recipe has a layout of its own."""
GIB = 2**30


def plan(
    words: Words = None,
    *,
    cluster: Annotated[
        str, typer.Option(metavar="8xH100|64x8xH100|this", help="Devices: a number, machines x devices, or this one.")
    ] = "this",
    hardware: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Devices and prices of your own, in TOML.", show_default=False)
    ] = None,
    price: Annotated[
        float | None, typer.Option(metavar="DOLLARS", min=0, help="Of an hour of one device, in place of the table's.")
    ] = None,
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Layouts to show.")] = 6,
    every: Annotated[
        bool, typer.Option("--all", help="Show all layouts that fit; on a large cluster this takes long.")
    ] = False,
    float8: Annotated[bool, typer.Option("--float8", help="Compare layouts that compute in float8, too.")] = False,
    apply: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the best layout: into RECIPE itself, or a new file that extends it."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Show phases, parts of a step, failures, and what is assumed.")
    ] = False,
    budget: Budgets = None,
    size: Size = None,
    law: LawFile = None,
    data: PreparedText = None,
    serve: Served = None,
    scale: Scale = None,
    plot: Plot = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Trace a step of the best layout's fullest rank on fake tensors.")
    ] = False,
) -> Result:
    """Predict memory, time and cost of a run. Nothing is computed: it is arithmetic on the recipe and data sheets.

    Where the recipe leaves the layout open, the layouts that fill the cluster are compared. Exit code 4: it does not
    fit, and the smallest cluster is named on which it would. With a budget, scaling laws say what to train with it.
    """
    from hornbook.plan.hardware import parse_cluster, read_hardware
    from hornbook.plan.planner import plan_run

    devices = parse_cluster(cluster, () if hardware is None else read_hardware(hardware))
    resolved = sized(words, resolve_words(words), size)
    if budget:
        ours = {"fixed": size is not None, "price": price, "law": law, "data": data, "serve": serve, "explain": explain}
        return budget_result(words, resolved, devices, budget, **ours)
    if scale is not None or plot is not None:
        return scale_result(resolved.recipe, devices, scale, plot)
    fixed = any(key.startswith(LAYOUT) and origin != "default" for key, origin in resolved.origins.items())
    if fixed:
        resolved = _filled(resolved, devices)
    search, most = not fixed and devices.count > 1, 10**6 if every else top
    found = plan_run(resolved.recipe, devices, search=search, price=price, top=most, float8=float8)
    if devices.machine:  # runs may have measured it
        from hornbook.plan.search.anchor import anchored

        found = anchored(found, resolved.recipe, devices)
    notes = [f"[yellow]![/] {text.replace('[', chr(92) + '[')}" for text in found.warnings]
    if not found.best.fits:
        notes.append(f"[red]does not fit[/] {cluster}: {found.fits_on}")
    if apply is not None:
        from hornbook.plan.search.apply import write_layout

        target, overrides = split_target(words)
        notes.append(f"written: {write_layout(apply, target, overrides, resolved.recipe, found)}")
    value, behind = found.record(), ""
    if verify:
        from hornbook.cli.train.simulation import trace_layout, traced_text
        from hornbook.plan.planner import settle

        traced = trace_layout(settle(resolved.recipe, devices), found.vocab, found.best)
        value, behind = value | {"traced": traced.to_json()}, f"\n\n{traced_text(traced)}"
    return Result(
        value,
        plan_text(found, explain=explain) + behind,
        code=Exit.DONE if found.best.fits else Exit.DOES_NOT_FIT,
        notes=notes,
        terminal=lambda: colored(plan_text(found, explain=explain, width=_room()) + behind),
    )


def _filled(resolved: "Resolved", devices: "Cluster") -> "Resolved":
    """The recipe with an axis of -1, or `parallel.data`, as many as there are devices. Raises UsageError."""
    from hornbook.settings.layout.world import check_world, fill_world

    resolved = fill_world(resolved, devices.count, "--cluster", data=True)
    if not devices.device.is_cpu:
        check_world(resolved.recipe.parallel, devices.count, f"--cluster has {devices.count} devices")
    return resolved


def plan_text(found: "Plan", *, explain: bool = False, width: int = BAR) -> str:
    """The table for people; width: characters of a bar as long as the device's memory."""
    device = found.cluster.device
    length = "" if found.tokens is None else f", {short(found.tokens)} tokens"
    header = (
        f"{found.name}: {short(found.parameters)} parameters{length}, {found.batch_tokens:,} tokens a step, "
        f"{found.cluster} of {device.memory:.0f} GiB"
    )
    rows = [["  layout", "micro", "recompute", "memory of a device", "GiB", "step", "MFU", "time", "cost"]]
    rows += [_row(found, each, width) for each in found.layouts]
    if found.missed is not None:
        rows.append(_row(found, found.missed, width))
    legend = "  ".join(f"{letter} {name}" for name, letter in LETTERS.items())
    lines = [header, "", columns(rows), "", f"  {legend}  x does not fit"]
    lines += ["", *found.reasons] if found.reasons else []
    rate = f"{device.rate('auto') / 1e12:,.0f} TFLOP/s" if not device.is_cpu else f"{device.fp32:.3f} TFLOP/s fp32"
    lines.append(f"device: {rate}, {device.bandwidth:,.0f} GB/s; {device.source}")
    if found.anchor:
        lines.append(found.anchor)
    if found.price is not None:
        lines.append(f"price: ${found.price:.2f} an hour of one device ({found.price_source}; --price sets another)")
    return "\n".join([*lines, *(_explained(found) if explain else [])])


def _row(found: "Plan", each: "Layout", width: int) -> list[str]:
    peak, seconds, cost = each.worst.peak.total, found.seconds(each), found.cost(each)
    several = len({layout.precision for layout in found.layouts}) > 1 or each.precision == "float8"
    precision = f", {each.precision}" if several else ""
    return [
        ("  " if each.fits else "x ") + each.name + precision,
        str(each.micro_batch),
        each.recompute,
        bar(each, found.cluster.device.memory_bytes, width),
        f"{peak / GIB:.1f}" if peak > GIB else f"{peak / GIB:.2f}",
        duration(each.step.total) if each.fits else "OOM",
        f"{each.mfu:.0%}" if each.fits else "",
        duration(seconds) if seconds is not None and each.fits else "",
        f"${cost:,.0f}" if cost is not None and each.fits else "",
    ]


def bar(layout: "Layout", capacity: int, width: int = BAR) -> str:
    """A letter for each part of the device's memory, up to its end; + for what is beyond."""
    peak, text = layout.worst.peak, ""
    done = 0
    for name, letter in LETTERS.items():
        done += getattr(peak, name)
        text += letter * (min(round(width * done / capacity), width) - len(text))
    return (text + "+" if done > capacity else text).ljust(width, ".")


def _room() -> int:
    """Characters of a bar for which a line of the table has room on this terminal."""
    return max(min(shutil.get_terminal_size().columns - BESIDE, BAR), 8)


def colored(table: str) -> "Text":
    """The table with bars in the colours of their legend."""
    from rich.text import Text

    by_letter = {letter: COLORS[name] for name, letter in LETTERS.items()}
    found = Text()
    for line in table.splitlines():
        legend = line.startswith("  W weights")
        at = 0
        for match in _BARS.finditer(line) if not legend else _LEGEND.finditer(line):
            found.append(line[at : match.start()])
            for letter in match[0]:
                found.append("█" if letter in by_letter else letter, style=by_letter.get(letter, "dim"))
            at = match.end()
        found.append(line[at:] + "\n")
    found.right_crop(1)
    return found


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
    parts = ", ".join(f"{name} {duration(value)}" for name, value in best.step if value)
    energy = found.kilowatt_hours(best)
    return [
        "",
        f"{best.name}: stage {worst.rank} holds most, at the peak in phase {worst.peak_phase!r}",
        columns(rows),
        f"a step: {parts}",
        f"{best.tokens_per_second:,.0f} tokens a second; {found.estimates} steps estimated, others ruled out by bounds",
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
    whole = "" if seconds is None else f", {duration(86400 * upkeep.days(seconds))} in all"
    stall, write, interval, restart = (
        duration(each)
        for each in (upkeep.stall_seconds, upkeep.write_seconds, upkeep.interval_seconds, upkeep.restart_seconds)
    )
    size = upkeep.checkpoint_bytes / GIB
    return [
        f"failures: one in {duration(upkeep.mtbf_seconds)}{expected}; as {upkeep.mtbf_source}",
        f"checkpoints of {size:.3g} GiB: one holds the loop {stall}, is written in {write}, best every {interval}",
        f"goodput {upkeep.goodput:.2%}{whole}: a restart takes {restart}; "
        f"the loader reads {upkeep.loader_rate / 1e6:.3g} MB/s",
    ]
