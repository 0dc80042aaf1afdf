"""`hornbook plan`: memory, time and cost of a run on a cluster, before it starts. No torch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.plan.budget import Budgets, LawFile, PreparedText, Served, Size, budget_result, sized
from hornbook.cli.plan.scale import Plot, Scale, scale_result
from hornbook.cli.plan.table import colored, plan_text, room
from hornbook.cli.result import Result
from hornbook.cli.shell import Words, resolve_words, split_target
from hornbook.errors import Exit

if TYPE_CHECKING:
    from hornbook.plan.devices.hardware import Cluster
    from hornbook.plan.search.result import Plan
    from hornbook.settings.resolve import Resolved

LAYOUT = tuple(f"parallel.{name}" for name in ("data", "shard", "replicas", "tensor", "pipeline", "context", "expert"))
"""Settings by which a recipe has a layout of its own."""


ClusterWord = Annotated[
    str, typer.Option(metavar="8xH100|64x8xH100|this", help="Devices: a number, machines x devices, or this one.")
]
Hardware = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Devices and prices of your own, in TOML.", show_default=False)
]
Price = Annotated[
    float | None, typer.Option(metavar="DOLLARS", min=0, help="Of an hour of one device, in place of the table's.")
]
Top = Annotated[int, typer.Option(metavar="N", min=1, help="Layouts to show.")]
Every = Annotated[bool, typer.Option("--all", help="Show all layouts that fit; on a large cluster this takes long.")]
Float8 = Annotated[bool, typer.Option("--float8", help="Compare layouts that compute in float8, too.")]
Apply = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the best layout: into RECIPE itself, or a new file that extends it."),
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Show phases, parts of a step, failures, and what is assumed.")
]
Verify = Annotated[
    bool, typer.Option("--verify", help="Trace a step of the best layout's fullest rank on fake tensors.")
]


def plan(
    words: Words = None,
    *,
    cluster: ClusterWord = "this",
    hardware: Hardware = None,
    price: Price = None,
    top: Top = 6,
    every: Every = False,
    float8: Float8 = False,
    apply: Apply = None,
    explain: Explain = False,
    budget: Budgets = None,
    size: Size = None,
    law: LawFile = None,
    data: PreparedText = None,
    serve: Served = None,
    scale: Scale = None,
    plot: Plot = None,
    verify: Verify = False,
) -> Result:
    """Predict memory, time and cost of a run. Nothing is computed: it is arithmetic on the recipe and data sheets.

    Where the recipe leaves the layout open, the layouts that fill the cluster are compared. Exit code 4: it does not
    fit, and the smallest cluster is named on which it would. With a budget, scaling laws say what to train with it.
    """
    from hornbook.plan.devices.hardware import parse_cluster, read_hardware
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
    traced, behind = _traced(found, resolved, devices) if verify else ({}, "")
    return Result(
        found.record() | traced,
        plan_text(found, explain=explain) + behind,
        code=Exit.DONE if found.best.fits else Exit.DOES_NOT_FIT,
        notes=notes,
        terminal=lambda: colored(plan_text(found, explain=explain, width=room()) + behind),
    )


def _traced(found: "Plan", resolved: "Resolved", devices: "Cluster") -> tuple[dict[str, object], str]:
    """What a step of the best layout's fullest rank takes on fake tensors, for programs and people."""
    from hornbook.cli.train.simulation import trace_layout, traced_text
    from hornbook.plan.planner import settle

    traced = trace_layout(settle(resolved.recipe, devices), found.vocab, found.best)
    return {"traced": traced.to_json()}, f"\n\n{traced_text(traced)}"


def _filled(resolved: "Resolved", devices: "Cluster") -> "Resolved":
    """The recipe with an axis of -1, or `parallel.data`, as many as there are devices. Raises UsageError."""
    from hornbook.settings.layout.world import check_world, fill_world

    resolved = fill_world(resolved, devices.count, "--cluster", data=True)
    if not devices.device.is_cpu:
        check_world(resolved.recipe.parallel, devices.count, f"--cluster has {devices.count} devices")
    return resolved
