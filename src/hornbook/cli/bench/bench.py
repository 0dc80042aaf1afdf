"""`hornbook bench`: what this machine can do, and where the time of a recipe's step goes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from hornbook.cli.bench.sweep import combinations, is_swept, refusal_text, sweep, sweep_text
from hornbook.cli.bench.text import accumulation_text, loader_text, machine_text, step_text
from hornbook.cli.result import Options, Result
from hornbook.cli.shell import DryRun, Words, resolve_words, split_targets
from hornbook.errors import UsageError
from hornbook.parallel.config import FILL, axis_ranks
from hornbook.progress import progress_bar
from hornbook.settings.layout.world import smallest_world
from hornbook.settings.recipe import Recipe

SECONDS = 20.0


@dataclass(frozen=True)
class BenchOptions(Options):
    """Options of a measurement: its subject and its time."""

    data: Annotated[Path | None, typer.Option(help="A folder written by `hornbook tokenize`; else random tokens.")] = (
        None
    )
    seconds: Annotated[float, typer.Option(help="Time for the measured steps of a recipe.")] = SECONDS
    folder: Annotated[Path, typer.Option(help="A folder on the disk to measure.")] = Path()
    loader: Annotated[bool, typer.Option("--loader", help="Measure the loader alone, beside the step's need.")] = False
    accumulation: Annotated[
        bool, typer.Option("--accumulation", help="Compare one big batch with ragged microbatches, in figures.")
    ] = False
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B", help="Measure every combination of settings; more words KEY=A,B too."),
    ] = None
    world: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Ranks: what the axis of [parallel] that is -1 fills.")
    ] = None
    out: Annotated[Path | None, typer.Option(help="Write the measurements to this file too, as JSON.")] = None
    dry_run: DryRun = False


def bench(words: Words = None, *, options: BenchOptions) -> Result:
    """Measure this machine, then the step of a recipe: shares of its time, tokens/s, MFU, memory.

    Without a recipe only the machine is measured. The results are kept in the user's cache for the planner and for the
    MFU of runs; each recipe is measured in a fresh process, on its own data or on random tokens. An axis of -1 gets
    the ranks of --world, else of the devices of this machine, and a line says how many were measured.
    """
    seconds, folder, data = options.seconds, options.folder, options.data
    loader, accumulation, world = options.loader, options.accumulation, options.world
    if seconds <= 0:
        raise UsageError(f"--seconds {seconds:g}: give a time above 0")
    if not folder.is_dir():
        raise UsageError(f"--folder {folder} is no folder: name one on the disk to measure")
    if loader + accumulation + bool(options.sweep) > 1:
        raise UsageError("--loader, --accumulation and --sweep are measurements of their own: give one of them")
    free, swept = _parted(words, options.sweep)
    free += [] if data is None else [f"data.path={data}"]
    named = bool(split_targets(free)[0]) or any("data.path" in word for word in free)
    if not named and (loader or accumulation or swept):
        raise UsageError("name the recipe to measure: hornbook bench RECIPE")
    if swept:
        return _sweep(free, combinations(swept), options)
    parts = ["accumulation"] if accumulation else ["loader", "step"] if loader else ["machine", "step"][: 1 + named]
    recipe, filled = _recipe(free, world)
    if options.dry_run:
        text = "\n".join([f"would measure {recipe.name}: {', '.join(parts)}", *filled])
        return Result({"measures": parts, "recipe": recipe.name, "ranks": recipe.parallel.world}, text)
    found = _measure_all(parts, recipe, folder.resolve(), seconds)
    return _result(
        found, "\n\n".join([*filled, *(_TEXTS[part](found) for part in parts if part in _TEXTS)]), options.out
    )


def _recipe(words: list[str], world: int | None) -> tuple[Recipe, list[str]]:
    """(The recipe with a number in place of -1, a line that says which and why if there was one)."""
    given = resolve_words(words)
    key = next((key for key, size in axis_ranks(given.recipe.parallel).items() if size == FILL), None)
    if key is None and world is None:
        return given.recipe, []
    from hornbook.run.launch.settle import settle_ranks

    try:
        recipe, why = settle_ranks(given, {}, world).recipe, "--world" if world else "the devices of this machine"
    except UsageError:
        if world is not None:
            raise
        recipe, why = smallest_world(given).recipe, "the fewest that the other axes allow; --world N measures others"
    ranks = recipe.parallel.world
    return recipe, [f"world        {ranks} rank{'s' if ranks > 1 else ''}, {key or 'parallel.data'} filled: {why}"]


_TEXTS: dict[str, Callable[[dict[str, Any]], str]] = {
    "machine": lambda found: machine_text(found["machine"]),
    "loader": lambda found: loader_text(found["loader"], found["step"]),
    "step": lambda found: step_text(found["step"]),
    "accumulation": lambda found: accumulation_text(found["accumulation"]),
}


def _parted(words: Sequence[str] | None, swept: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """(recipe and settings, words with several values): with --sweep, any word `key=a,b` names several."""
    free, found = list(words or []), list(swept or [])
    if found:
        found += [word for word in free if is_swept(word)]
        free = [word for word in free if not is_swept(word)]
    return free, found


def _plan(words: list[str], world: int | None) -> dict[str, Any]:
    recipe, filled = _recipe(words, world)
    return {"words": " ".join(words), "ranks": recipe.parallel.world, "filled": filled}


def _sweep_plan(rows: list[dict[str, Any]]) -> Result:
    """What a sweep would measure; `rows` hold plans instead of bills."""
    lines, found = [], []
    for row in rows:
        plan, settings = row["step"], row["settings"]
        found.append(settings | ({"refused": row["refused"]} if plan is None else {"ranks": plan["ranks"]}))
        lines += [refusal_text(row)] if plan is None else [f"would measure {plan['words']}", *plan["filled"]]
    return Result({"combinations": found}, "\n".join(lines))


def _sweep(free: list[str], chosen: list[dict[str, str]], options: BenchOptions) -> Result:
    filled, world = dict[str, None](), options.world

    def words_of(settings: dict[str, str]) -> list[str]:
        return [*free, *(f"{key}={value}" for key, value in settings.items())]

    if options.dry_run:
        return _sweep_plan(sweep(chosen, lambda settings: _plan(words_of(settings), world)))
    with progress_bar() as progress:
        counted = iter(range(len(chosen)))

        def measure(settings: dict[str, str]) -> dict[str, Any]:
            progress("combinations", next(counted), len(chosen))
            recipe, lines = _recipe(words_of(settings), world)
            filled.update(dict.fromkeys(lines))
            return _measure("step", recipe, seconds=options.seconds)

        rows = sweep(chosen, measure)
    if not any(row["step"] for row in rows):
        raise UsageError("every combination was refused:\n" + sweep_text(rows))
    return _result({"sweep": rows}, "\n".join([*filled, sweep_text(rows)]), options.out)


def _measure_all(parts: Sequence[str], recipe: Recipe, folder: Path, seconds: float) -> dict[str, Any]:
    more = {"machine": {"folder": str(folder)}, "accumulation": {}}
    found = {}
    with progress_bar() as progress:
        for part in parts:
            progress(f"measure the {part}", 0, None)
            found[part] = _measure(part, recipe, **more.get(part, {"seconds": seconds}))
    return found


def _measure(what: str, recipe: Recipe, **more: Any) -> dict[str, Any]:
    from hornbook.run.diagnose.bench.worker import measure

    return measure(what, recipe, **more)


def _result(found: dict[str, Any], text: str, out: Path | None) -> Result:
    files = [each["file"] for each in found.values() if isinstance(each, dict) and each.get("file")]
    if out is not None:
        from hornbook.run.machine.saved import write

        files.append(str(write(out, found, named=True)))
    return Result(found, text, notes=[f"saved in {name}" for name in files])
