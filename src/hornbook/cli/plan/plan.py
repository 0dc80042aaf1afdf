"""`hornbook plan`: memory, time and cost of a run on a cluster, before it starts. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from hornbook.cli.plan.budget import BudgetOptions, budget_result, sized, train_tokens, with_train
from hornbook.cli.plan.scale import scale_result
from hornbook.cli.plan.table import colored, plan_text, room
from hornbook.cli.result import Options, Result, columns
from hornbook.cli.shell import Words, resolve_words, split_target
from hornbook.errors import Exit, UsageError
from hornbook.plan.claims import recompute_claim
from hornbook.plan.devices.hardware import Cluster, parse_cluster, read_hardware
from hornbook.plan.planner import plan_run, settle, vocabulary
from hornbook.plan.search.anchored_plan import anchored
from hornbook.plan.search.apply_plan import write_layout
from hornbook.plan.search.number_words import step_time
from hornbook.plan.search.plan_result import Plan
from hornbook.plan.search.space import PARTS, fixed_parts
from hornbook.settings.layout.world import check_world, fill_world
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved

LAYOUT = tuple(f"parallel.{name}" for name in ("data", "shard", "replicas", "tensor", "pipeline", "context", "expert"))
"""Settings by which a recipe has a layout of its own."""
_TABLE = ("--apply", "--verify", "--all", "--float8", "--explain", "--price", "--search")
"""Options of the table of layouts."""
UNUSED = {
    "--budget": ("--scale", "--plot", "--apply", "--verify", "--all", "--float8", "--search"),
    "--claim": ("--budget", "--scale", "--plot", *_TABLE),
    "--scale": _TABLE,
}
"""Options that another answer has no use for."""
OF_BUDGET = ("--law", "--serve")
"""Options that only a budget has a use for."""


@dataclass(frozen=True)
class LayoutOptions(Options):
    """Devices, and the layouts that fill them."""

    cluster: Annotated[
        str, typer.Option(metavar="8xH100|64x8xH100|this", help="Devices: a number, machines x devices, or this one.")
    ] = "this"
    hardware: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Devices and prices of your own, in TOML.", show_default=False)
    ] = None
    price: Annotated[
        float | None, typer.Option(metavar="DOLLARS", min=0, help="Of an hour of one device, in place of the table's.")
    ] = None
    top: Annotated[int, typer.Option(metavar="N", min=1, help="Layouts to show.")] = 6
    every: Annotated[
        bool, typer.Option("--all", help="Show all layouts that fit; on a large cluster this takes long.")
    ] = False
    search: Annotated[
        bool,
        typer.Option(
            "--search",
            help="Compare layouts though the recipe sets one; what the command line sets of it stays as it is.",
        ),
    ] = False
    float8: Annotated[bool, typer.Option("--float8", help="Compare layouts that compute in float8, too.")] = False
    apply: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the best layout: into RECIPE itself, or a new file that extends it."),
    ] = None
    explain: Annotated[
        bool, typer.Option("--explain", help="Show phases, parts of a step, failures, and what is assumed.")
    ] = False


def plan(
    words: Words = None,
    *,
    layouts: LayoutOptions,
    budgets: BudgetOptions,
    scale: Annotated[
        str | None, typer.Option(metavar="8..100000", help="Simulate weak and strong scaling over such devices.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="With --scale: a picture to write (.svg).")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Trace a step of the best layout's fullest rank on fake tensors.")
    ] = False,
    claim: Annotated[
        str | None,
        typer.Option(metavar="2.81s|5826tok/s|66.07%", help="Count a published step, speed of a device or MFU anew."),
    ] = None,
) -> Result:
    """Predict memory, time and cost of a run. Nothing is computed: it is arithmetic on the recipe and data sheets.

    Where the recipe leaves the layout open, the layouts that fill the cluster are compared. Exit code 4: it does not
    fit, and the smallest cluster is named on which it would. With a budget, scaling laws say what to train with it.
    """
    given = {f"--{name}": value for name, value in (vars(layouts) | vars(budgets)).items()}
    given |= {"--all": layouts.every, "--price": layouts.price is not None}
    _check_used({**given, "--scale": scale, "--plot": plot, "--verify": verify, "--claim": claim})
    hardware, price, explain = layouts.hardware, layouts.price, layouts.explain
    devices = parse_cluster(layouts.cluster, () if hardware is None else read_hardware(hardware))
    resolved = sized(words, resolve_words(words), budgets.size)
    if claim is not None:
        return claim_result(resolved.recipe, devices, claim)
    if budgets.budget:
        return budget_result(words, resolved, devices, budgets, price=price, explain=explain)
    if scale is not None or plot is not None:
        return scale_result(resolved, devices, scale, plot)
    resolved, found = _compared(_with_data(resolved, budgets.data), devices, layouts)
    notes = [f"[yellow]![/] {escape(text)}" for text in found.warnings]
    if layouts.apply is not None:
        notes.append(escape(_applied(layouts.apply, words, found)))
    traced, behind = _traced(found, resolved, devices) if verify else ({}, "")
    text = plan_text(found, explain=explain, room=room()) + behind
    code = Exit.DONE if found.best.fits else Exit.DOES_NOT_FIT
    return Result(found.record() | traced, text, code=code, notes=notes, terminal=lambda: colored(text))


def _with_data(resolved: Resolved, data: Path | None) -> Resolved:
    """The recipe with the tokens of its epochs, where their data is named or here. Raises UsageError."""
    train, path = resolved.recipe.train, data or resolved.recipe.data.path
    if data is not None and train.epochs is None:
        raise UsageError(f"--data {data}: the recipe has train.tokens; --train.epochs N takes the length from data")
    if train.epochs is None or path is None or (data is None and not Path(path, "tokens", "index.json").exists()):
        return resolved
    return with_train(resolved, tokens=round(train.epochs * train_tokens(Path(path))))


def _applied(file: Path, words: Words, found: Plan) -> str:
    """Write the best layout into a recipe, and say so."""
    target, overrides = split_target(words)
    written = write_layout(file, target, overrides, found)
    beside = [each for each in overrides if not any(key.startswith(each.partition("=")[0]) for key in PARTS)]
    return f"written: {written}" + (f", without {' '.join(beside)}: give the run that too" if beside else "")


def _check_used(options: "Mapping[str, object]") -> None:
    """Options by name, those given with a true value. Raises UsageError for one that would change nothing."""
    given = {name for name, value in options.items() if value}
    for answer, unused in UNUSED.items():
        if answer in given and (lost := [name for name in unused if name in given]):
            raise UsageError(f"{answer} has no use for {' and '.join(lost)}: leave out one or the other")
    if "--budget" not in given and (lost := [name for name in OF_BUDGET if name in given]):
        raise UsageError(f"{' and '.join(lost)} say more about a budget: give --budget too")


def _compared(resolved: Resolved, devices: Cluster, layouts: LayoutOptions) -> tuple[Resolved, Plan]:
    """(the recipe with ranks for all devices if its own layout is planned; the layouts)."""
    own = any(key.startswith(LAYOUT) and origin != "default" for key, origin in resolved.origins.items())
    search = layouts.search or (devices.has_choice and not own)
    if own and not search:
        resolved = _filled(resolved, devices)
    fixed = fixed_parts(resolved) if search else {}
    shown = {"price": layouts.price, "top": 10**6 if layouts.every else layouts.top, "float8": layouts.float8}
    found = plan_run(resolved.recipe, devices, search=search, fixed=fixed, **shown)
    if devices.machine:  # runs may have measured it
        found = anchored(found, resolved.recipe, devices)
    return resolved, found


def _traced(found: Plan, resolved: Resolved, devices: Cluster) -> tuple[dict[str, object], str]:
    """What a step of the best layout's fullest rank takes on fake tensors, for programs and people."""
    from hornbook.cli.train.simulation import trace_layout, traced_text

    traced = trace_layout(settle(resolved.recipe, devices), found.vocab, found.best)
    return {"traced": traced.to_json()}, f"\n\n{traced_text(traced)}"


def _filled(resolved: Resolved, devices: Cluster) -> Resolved:
    """The recipe with an axis of -1, or `parallel.data`, as many as there are devices. Raises UsageError."""
    resolved = fill_world(resolved, devices.count, "--cluster", data=True)
    if not devices.device.is_cpu:
        check_world(resolved.recipe.parallel, devices.count, f"--cluster has {devices.count} devices")
    return resolved


def claim_result(recipe: Recipe, cluster: Cluster, claim: str) -> Result:
    """The claimed MFU, recomputed by each convention. Raises UsageError."""
    recipe = settle(recipe, cluster)
    found = recompute_claim(claim, recipe, vocabulary(recipe), cluster)
    rows = [["counted as", "TFLOP a step", "step", "of the peak", "MFU (causal)"]]
    for row in found:
        step = [f"{row.operations / 1e12:,.0f}", step_time(row.step_seconds)]
        rows.append([row.convention, *step, f"{row.share:.2%}", f"{row.causal:.2%}"])
    peak = cluster.device.rate(recipe.train.precision) / 1e12
    head = (
        f"{recipe.name}: {claim} claimed for steps of {recipe.train.batch_tokens:,} tokens on {cluster.count} x "
        f"{cluster.device.name}, {peak:,.0f} TFLOP/s each ({recipe.train.precision})"
    )
    asked = "if the share was counted so, a step took this long and MFU is the last column" if "%" in claim else ""
    notes = []
    if all(row.causal > 1 for row in found):
        notes.append(f"[yellow]![/] more than {cluster.device.name} can do: check devices, batch and recipe")
    record = {"claim": claim, "counted": [row.model_dump(mode="json") for row in found]}
    return Result(record, "\n".join([head, "", columns(rows), *([asked] if asked else [])]), notes=notes)
