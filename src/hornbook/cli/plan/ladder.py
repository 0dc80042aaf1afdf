"""`hornbook ladder run | fit | published`: runs of a scaling law of one's own, its fit; compute of published models.

No torch here: each run is a process of its own.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from subprocess import DEVNULL, Popen
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.markup import escape

from hornbook.cli.child import command, require_done
from hornbook.cli.result import CommandGroup, Result, columns
from hornbook.cli.shell import WORDS, DryRun, Words, resolve_words, say, split_target
from hornbook.errors import Exit, HornbookError, IntegrityError, StoppedError, UsageError, quoted
from hornbook.files.durable import writing
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import evaluations, find_runs, fullest, steps_that_count, summarize
from hornbook.model.config.parameter_count import embedding_rows
from hornbook.plan.devices.hardware import parse_cluster
from hornbook.plan.planner import plan_run
from hornbook.plan.scaling.budget_words import parse_budgets
from hornbook.plan.scaling.compute import published_compute
from hornbook.plan.scaling.shape import count_as
from hornbook.plan.search.anchored_plan import anchored
from hornbook.plan.search.number_words import duration, figure, short
from hornbook.settings.recipe import Recipe
from hornbook.settings.resolve import Resolved
from hornbook.settings.resume_rules import resume_changes

if TYPE_CHECKING:
    from hornbook.plan.scaling.ladder import LadderFit, Rung

app = CommandGroup(
    help="Fit a scaling law to runs of several sizes; compute of published models.",
    no_args_is_help=True,
    add_completion=False,
)
TAIL = 0.05
"""Last share of the steps whose median is the training loss of a run."""
SYMBOLS = {"exponent": "a, of N ~ C^a"}


@app.command(context_settings=WORDS)
def run(
    words: Words = None,
    *,
    data: Annotated[Path, typer.Option(help="A folder written by `hornbook tokenize`.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the runs.")],
    compute: Annotated[
        list[str], typer.Option(metavar="1e15", help="Operations (6 N D) of each run of a curve; repeatable.")
    ],
    sizes: Annotated[int, typer.Option(metavar="N", min=3, help="Models of each curve.")] = 5,
    spread: Annotated[
        float, typer.Option(metavar="FACTOR", min=1.2, help="Largest over best size by the replicated law.")
    ] = 4.0,
    dry_run: DryRun = False,
) -> Result:
    """Train isoFLOP curves: several sizes for each budget of operations, one run after the other.

    Models have the recipe's parts and usual proportions; data, batch, learning rate and schedule are the recipe's. Runs
    that are finished stay, one that was stopped goes on, if they are of the same settings and data: others are refused.
    `hornbook ladder fit` fits their law; it needs two budgets or more.
    """
    from hornbook.data.corpus import Corpus
    from hornbook.plan.scaling.isoflop import doubts, isoflop_runs

    resolved = resolve_words(words, f"data.path={data}")
    budgets = [parse_budgets([each], "--compute").operations for each in compute]
    if None in budgets:
        raise UsageError("--compute: write operations, such as 1e15 or 0.1PFd")
    recipe = _with_rows_of(data, resolved.recipe)
    planned, left_out = isoflop_runs(recipe, sorted({each for each in budgets if each}), sizes, spread)
    target, overrides = split_target(words)
    rows, expected = [], dict[str, float | None]()
    for each in planned:
        wanted = _with_rows_of(data, resolve_words([*(words or []), *each.words()], f"data.path={data}").recipe)
        status = "new"
        if (there := RunDir(out / each.name)).recipe.is_file():
            _require_same(there, wanted)
            status = summarize(there).status
        expected[each.name] = seconds = None if status == "finished" else _seconds(wanted)
        time = "" if seconds is None else duration(seconds)
        rows.append([each.name, short(each.parameters), short(each.tokens), f"{each.operations:.3g}", time, status])
    train = sum(stream.tokens for stream in Corpus.open(data).train.values())
    notes = [f"[yellow]![/] {name} is left out: {why}" for name, why in left_out.items()]
    warnings = list(doubts(planned, train))
    notes += [f"[yellow]![/] {text}" for text in warnings]
    for number, (each, row) in enumerate(zip(planned, rows, strict=True), 1):
        if not dry_run and row[-1] != "finished":
            say(f"run {number} of {len(planned)}: {each.name}{row[-2] and f', about {row[-2]}'}")
            given = [word for word in (target, *overrides, *each.words()) if word is not None]
            _train(*given, "--data", data, "--out", out / each.name, "--resume", "auto")
            row[-2:] = ["", "finished"]
    if dry_run and (total := sum(each or 0.0 for each in expected.values())):
        notes.append(f"about {duration(total)} of steps, as planned; evaluations and saves are not in it")
    notes.append(f"fit: hornbook ladder fit {quoted(out)}")
    runs = [each.model_dump(mode="json") | {"seconds": expected[each.name]} for each in planned]
    value = {"runs": runs, "left_out": left_out, "warnings": warnings}
    header = ["run", "parameters", "tokens", "operations", "time", "status"]
    return Result(value, columns([header, *rows]), notes=notes)


def _seconds(recipe: Recipe) -> float | None:
    """Of the steps of a run on this machine, as planned; None for parts that the planner does not know."""
    try:
        here = parse_cluster("this")
        best = anchored(plan_run(recipe, here, remedy=False), recipe, here).best
    except UsageError:
        return None
    return (recipe.train.tokens or 0) / best.tokens_per_second if best.fits else None


def _train(*words: object) -> None:
    """Train one run in a process of its own. It saves and stops on the signals that stop `hornbook train`, which are
    passed on to it. Raises HornbookError where it did not finish."""
    from hornbook.run.job.signals import StopSignals

    with StopSignals(announces=False) as stop, Popen(command("train", *map(str, words)), stdout=DEVNULL) as worker:
        stop.pass_on = lambda _: worker.terminate()
        code = worker.wait()
    if stop.received or code == Exit.RESUMABLE:
        raise StoppedError("stopped: the same command goes on where this run was saved")
    require_done(("train", *words), code)


@app.command()
def fit(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN|FOLDER", help="Finished runs, or folders of runs.")],
    *,
    loss: Annotated[
        Literal["held-out", "train"], typer.Option(help="Of the same held-out rows, or of the last steps.")
    ] = "held-out",
    count: Annotated[
        Literal["all", "without-embeddings"], typer.Option(help="Which parameters N and 6 N D count.")
    ] = "all",
    compute: Annotated[
        str | None, typer.Option(metavar="1e18", help="Operations to plan; by default ten times the largest run.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the law, for `hornbook plan --budget ... --law FILE`.")
    ] = None,
    dry_run: DryRun = False,
) -> Result:
    """Fit L = E + A / N^alpha + B / D^beta to the final losses of your own runs, by a sound form of approach 3.

    The runs share data, tokenizer and recipe but for size and tokens, and each has finished its schedule. Eight runs of
    three sizes and three lengths are the least; intervals are of 200 bootstrap samples.
    """
    from hornbook.plan.scaling.ladder import fit_ladder

    budget = None if compute is None else parse_budgets([compute], "--compute").operations
    if compute is not None and budget is None:
        raise UsageError(f"--compute {compute!r}: write operations, such as 1e18 or 12PFd")
    rungs, left_out = read_rungs(runs, loss=loss, count=count)
    notes = [f"[yellow]![/] {escape(f'{name} is left out: {why}')}" for name, why in left_out.items()]
    try:
        found = fit_ladder(rungs, counts="all" if count == "all" else "without embeddings", compute=budget)
    except UsageError as error:
        reasons = "".join(f"\n{name} is left out: {why}" for name, why in left_out.items())
        raise UsageError(f"{error}{reasons}") from error
    notes += [f"[yellow]![/] {escape(text)}" for text in found.warnings]
    if out is not None and not dry_run:
        with writing(out) as file:
            file.write(f"{found.law.model_dump_json(indent=1)}\n".encode())
    if out is not None:
        notes.append(escape(f"{'would write' if dry_run else 'written:'} {out}"))
    value = found.model_dump(mode="json", exclude={"law": {"samples"}})
    points = [rung.model_dump(mode="json", exclude={"curve"}) for rung in rungs]
    return Result(value | {"points": points, "left_out": left_out}, ladder_text(found, rungs), notes=notes)


SETTLED = ("data.path", "data.replay.path", "model.head.labels", "train.micro_batch", "train.device", "train.threads")
LAST_BITS = ("train.compile*", "parallel.*", "guard.*")
"""Settings that a run settles by its data and machine, or that change no more than last bits of the loss of a run
without faults."""


def _require_same(run: RunDir, wanted: Recipe) -> None:
    """Raise UsageError where a run that is there is of other settings or data than the ladder's."""
    from hornbook.data.corpus import check_data_lock, open_corpus
    from hornbook.run.checkpoints.bound import recipe_in_force
    from hornbook.run.job.start.run_teacher import pin_teacher

    there = recipe_in_force(run)
    changes = [
        f"{each.key} {each.old} -> {each.new}"
        for each in resume_changes(there, pin_teacher(Resolved(wanted, {}), there).recipe)
        if each.policy != "free"
        and each.new not in (None, "auto")
        and not any(fnmatchcase(each.key, glob) for glob in (*SETTLED, *LAST_BITS))
    ]
    try:
        check_data_lock(run.data_lock, open_corpus(wanted.data, str(wanted.data.path)).lock())
    except IntegrityError as error:
        changes.append(str(error))
    if changes:
        more = f" and {len(changes) - 4} more" if len(changes) > 4 else ""
        raise UsageError(
            f"{run.path} is there, and it is another run ({'; '.join(changes[:4])}{more}): one fit is of runs with the "
            "same settings and data. Take another --out, or delete that folder"
        )


def _with_rows_of(data: Path, recipe: Recipe) -> Recipe:
    """The recipe with as many rows of the embedding as its runs will have on this data, unless it says how many."""
    from hornbook.data.corpus import Corpus

    rows = embedding_rows(recipe.model, Corpus.open(data).vocab_size)
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"vocab": rows})})


def read_rungs(paths: Iterable[Path], *, loss: str, count: str) -> tuple[list["Rung"], dict[str, str]]:
    """(finished runs with a loss of one kind, name -> why another one is left out). Raises UsageError."""
    rows: dict[str, str | None] = {}
    found: dict[str, Rung] = {}
    left_out: dict[str, str] = {}
    for run in _directories(paths):
        name = str(run.path)
        try:
            found[name], rows[name] = _rung(run, held_out=loss == "held-out", bare=count != "all")
        except (HornbookError, OSError, LookupError, TypeError, ValueError) as error:
            left_out[name] = str(error) or repr(error)
    common = Counter(rows.values()).most_common(1)
    for name in list(found):
        if rows[name] != common[0][0]:
            left_out[name] = "it was scored on other held-out rows: `hornbook eval RUN --data FILES` scores one text"
            del found[name]
    return list(found.values()), left_out


def _directories(paths: Iterable[Path]) -> list[RunDir]:
    directories: dict[Path, RunDir] = {}
    for path in paths:
        inside = find_runs(path)
        if not inside:
            raise UsageError(f"{path}: there is no run, and no folder of runs")
        directories |= {run.path.resolve(): run for run in inside}
    return list(directories.values())


def _rung(run: RunDir, *, held_out: bool, bare: bool) -> tuple["Rung", str | None]:
    """(a finished run, which rows its loss is of). Raises UsageError where it has no such loss."""
    from hornbook.plan.scaling.ladder import Rung
    from hornbook.run.checkpoints.bound import recipe_in_force

    summary = summarize(run)
    if summary.status != "finished":
        raise UsageError(summary.problem or f"it is {summary.status}, not finished")
    model = recipe_in_force(run).model
    if model.vocab is None:
        raise UsageError("its recipe does not say how many rows the embedding has: resume it once")
    size = count_as(model, model.vocab, "without embeddings" if bare else "all")
    value, curve, rows = _held_out(run, summary.step) if held_out else _trained(run)
    return Rung(name=run.name, parameters=size, tokens=summary.tokens, loss=value, curve=curve), rows


Scored = tuple[float, tuple[tuple[float, float], ...], str | None]
"""The final loss, (tokens, loss) on the way, and which rows they are of."""


def _held_out(run: RunDir, step: int) -> Scored:
    scored = evaluations(run)
    if not scored or scored[-1]["step"] != step:
        raise UsageError("it was not evaluated at its end: --loss train takes its training loss")
    last = fullest(scored[-1])
    curve = [(float(each["tokens"]), float(each["all"]["loss"])) for each in scored if _is_same(each, scored[-1])]
    return float(last["all"]["loss"]), tuple(curve), last.get("rows")


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one.get("rows") == other.get("rows")


def _trained(run: RunDir) -> Scored:
    from statistics import median

    losses = [float(step["loss"]) for step in steps_that_count(run) if step["loss"] is not None]
    if not losses:
        raise UsageError("it has no training loss")
    return median(losses[-max(int(TAIL * len(losses)), 1) :]), (), None


def ladder_text(found: "LadderFit", rungs: Iterable["Rung"]) -> str:
    """Points, constants with intervals, the optimum."""
    law, best = found.law, found.optimum
    points = [["run", "parameters", "tokens", "loss", "fit"]]
    for rung in sorted(rungs, key=lambda rung: (rung.parameters, rung.tokens)):
        said = law.loss(rung.parameters, rung.tokens)
        points.append([rung.name, short(rung.parameters), short(rung.tokens), f"{rung.loss:.4f}", f"{said:.4f}"])
    rows = [["constant", "fit", "90 % interval"]]
    for name, (low, high) in found.intervals.items():
        value = getattr(law, name)
        rows.append([SYMBOLS.get(name, name), f"{value:.4g}", f"{low:.4g} to {high:.4g}"])
    lines = [columns(points), "", columns(rows), ""]
    lines.append(f"L = E + A / N^alpha + B / D^beta, where N counts {law.parameters} parameters; {found.runs} runs")
    lines.append(f"median error of the losses: {found.residual:.2%}")
    for number, each in (("1, envelope", found.approach_1), ("2, isoFLOP parabolas", found.approach_2)):
        if each is not None:
            lines.append(f"approach {number}: N ~ C^{each.exponent:.3f}, of {each.points} points")
    low, high = found.ratio_interval
    small, large = found.size_interval
    lines.append(
        f"for {best.compute:.3g} operations: {short(best.parameters)} parameters ({short(small)} to {short(large)}), "
        f"{short(best.tokens)} tokens, {figure(best.ratio)} a parameter ({figure(low)} to {figure(high)}), "
        f"loss {best.loss:.4f} "
        f"({found.loss_interval[0]:.4f} to {found.loss_interval[1]:.4f})"
    )
    return "\n".join(lines)


@app.command()
def published(
    *,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a chart (.svg).")] = None,
    dry_run: DryRun = False,
) -> Result:
    """Show the training compute of BERT, RoBERTa, T5 and GPT-3 in petaFLOP/s-days (table D.1, arXiv 2005.14165)."""
    found = published_compute()
    if out is not None and out.suffix != ".svg":
        raise UsageError(f"--out {out}: the name must end with .svg")
    rows = [["model", "parameters", "tokens", "operations", "petaFLOP/s-days"]]
    for each in found:
        total = each.operations * each.parameters * each.tokens
        days = figure(each.petaflops_days)
        rows.append([each.name, short(each.parameters), short(each.tokens), f"{total:.3g}", days])
    if out is not None and not dry_run:
        from hornbook.studio.bars import bar_chart

        bars = {each.name: each.petaflops_days for each in found}
        with writing(out) as file:
            file.write(bar_chart("training compute in petaFLOP/s-days", bars).encode())
    value = {"models": [each.model_dump(mode="json") | {"petaflops_days": each.petaflops_days} for each in found]}
    notes = [] if out is None else [f"{'would write' if dry_run else 'written:'} {out}"]
    return Result(value, columns(rows), notes=notes)
