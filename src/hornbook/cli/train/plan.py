"""`hornbook plan`: memory, time and cost of a run on a cluster, before it starts. No torch."""

from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result, columns
from hornbook.cli.shell import Words, resolve_words
from hornbook.errors import Exit

if TYPE_CHECKING:
    from hornbook.plan.hardware import Cluster
    from hornbook.plan.planner import Layout, Plan
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
        bool, typer.Option("--explain", help="Show phases, parts of a step, and what is assumed.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Trace a step of the best layout's fullest rank on fake tensors.")
    ] = False,
) -> Result:
    """Predict memory, time and cost of a run. Nothing is computed: it is arithmetic on the recipe and data sheets.

    Where the recipe leaves the layout open, the layouts that fill the cluster are compared. Exit code 4: it does not
    fit, and the smallest cluster is named on which it would.
    """
    from hornbook.plan.hardware import parse_cluster
    from hornbook.plan.planner import plan_run

    devices = parse_cluster(cluster)
    resolved = resolve_words(words)
    fixed = any(key.startswith(LAYOUT) and origin != "default" for key, origin in resolved.origins.items())
    if fixed:
        resolved = _filled(resolved, devices)
    found = plan_run(resolved.recipe, devices, search=not fixed and devices.count > 1, price=price)
    value = found.model_dump(mode="json") | {
        "layouts": [_json(found, each) for each in found.layouts],
    }
    notes = [f"[yellow]![/] {text}" for text in found.warnings]
    code = Exit.DONE if found.best.fits else Exit.DOES_NOT_FIT
    if not found.best.fits:
        fit = f"it fits on {found.remedy}" if found.remedy else "no number of these devices holds it"
        notes.append(f"[red]does not fit[/] {cluster}: {fit}")
    text = plan_text(found, explain=explain)
    if verify:
        from hornbook.cli.train.simulation import trace_layout, traced_text
        from hornbook.plan.planner import settle

        traced = trace_layout(settle(resolved.recipe, devices), found.vocab, found.best)
        value, text = value | {"traced": traced.to_json()}, f"{text}\n\n{traced_text(traced)}"
    return Result(value, text, code=code, notes=notes)


def _filled(resolved: "Resolved", devices: "Cluster") -> "Resolved":
    """The recipe with an axis of -1, or `parallel.data`, as many as there are devices. Raises UsageError."""
    from hornbook.settings.layout.world import check_world, fill_world

    resolved = fill_world(resolved, devices.count, "--cluster", data=True)
    if not devices.device.is_cpu:
        check_world(resolved.recipe.parallel, devices.count, f"--cluster has {devices.count} devices")
    return resolved


def _json(plan: "Plan", layout: "Layout") -> dict[str, object]:
    """A layout, with what depends on the length of the run."""
    return layout.model_dump(mode="json") | {
        "peak_bytes": layout.worst.peak.total,
        "peak_phase": layout.worst.peak_phase,
        "step_seconds": layout.step.total,
        "seconds": plan.seconds(layout),
        "dollars": plan.cost(layout),
        "kilowatt_hours": plan.kilowatt_hours(layout),
    }


def plan_text(found: "Plan", *, explain: bool = False) -> str:
    """The table for people."""
    device = found.cluster.device
    length = "" if found.tokens is None else f", {_short(found.tokens)} tokens"
    header = (
        f"{found.name}: {_short(found.parameters)} parameters{length}, {found.batch_tokens:,} tokens a step, "
        f"{found.cluster} of {device.memory:.0f} GiB"
    )
    rows = [["layout", "micro", "recompute", "memory", "GiB", "step", "tokens/s", "MFU", "time", "cost"]]
    rows += [_row(found, each) for each in found.layouts]
    legend = "  ".join(f"{letter} {name}" for name, letter in LETTERS.items())
    lines = [header, "", columns(rows), "", legend]
    rate = f"{device.rate('auto') / 1e12:,.0f} TFLOP/s" if not device.is_cpu else f"{device.fp32:.3f} TFLOP/s fp32"
    lines.append(f"device: {rate}, {device.bandwidth:,.0f} GB/s; {device.source}")
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
        _seconds(each.step.total) if each.fits else "OOM",
        f"{each.tokens_per_second:,.0f}" if each.fits else "",
        f"{each.mfu:.0%}" if each.fits else "",
        _seconds(seconds) if seconds is not None and each.fits else "",
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
    parts = ", ".join(f"{name} {_seconds(value)}" for name, value in best.step if value)
    energy = found.kilowatt_hours(best)
    return [
        "",
        f"{best.name}: stage {worst.rank} holds most, at the peak in phase {worst.peak_phase!r}",
        columns(rows),
        f"a step: {parts}",
        f"MFU {best.mfu:.1%} (pairs that see each other), {best.mfu_palm:.1%} (all pairs, PaLM); HFU {best.hfu:.1%}",
        *([f"energy {energy:,.0f} kWh of the devices"] if energy else []),
    ]


def _seconds(value: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.2f} s" if value >= 1 else f"{1e3 * value:.1f} ms"


def _short(number: float) -> str:
    for unit, size in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.0f}"
