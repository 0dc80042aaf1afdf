"""`hornbook train | resume | fork | reference`: train a model, continue a run, or start one from another."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, RunWords, Words, resolve_words, runs_folder, say, split_target
from hornbook.cli.studio.watch import watch_beside
from hornbook.cli.train.simulation import simulate_rank
from hornbook.cli.train.training import load_torch, run_job
from hornbook.errors import Exit, UsageError, quoted
from hornbook.files.run_directory import RunDir
from hornbook.progress import progress_bar
from hornbook.settings.resolve import Resolved, override, resolve
from hornbook.settings.sources import COMMAND_LINE, command_line_source, environment_source
from hornbook.text.config.labels import Dialogue

if TYPE_CHECKING:
    from hornbook.run.job.faults import FaultInjector

Faults = Annotated[
    Path | None, typer.Option(metavar="PLAN", help="Inject the faults of this TOML file, to see what a run survives.")
]

Until = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Save and stop before: 90m, 2h, 2026-11-27T06:00; by default a Slurm job's end."),
]


def train(
    words: Words = None,
    *,
    data: Annotated[Path | None, typer.Option(help="A folder written by `hornbook tokenize`.")] = None,
    out: Annotated[Path | None, typer.Option(help="Run directory to create; by default runs/NAME.")] = None,
    resume: Annotated[
        str | None, typer.Option(metavar="auto", help="auto: resume if the run directory holds a run, otherwise start.")
    ] = None,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="RUN|CHECKPOINT", help="Start from the weights of a run or checkpoint."),
    ] = None,
    world: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Ranks: what the axis of the section parallel that is -1, or parallel.data, fills."
        ),
    ] = None,
    rank: Annotated[
        int | None, typer.Option(metavar="R", min=0, help="With --dry-run: memory and collectives of this rank.")
    ] = None,
    until: Until = None,
    faults: Faults = None,
    watch: Annotated[bool, typer.Option("--watch", help="Open a live page of the run, which ends with it.")] = False,
    dry_run: DryRun = False,
) -> Result | Exit:
    """Train a model. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 save and stop (exit code 75); `hornbook resume` continues.

    A run that starts from weights (--from) is evaluated before its first step. `--world 1024 --rank 0 --dry-run`
    builds one rank of a large run on this machine, without data: its memory, and what it sends.
    """
    if rank is not None:
        _check_rank(rank, {"--from": from_, "--resume": resume}, dry_run=dry_run)
    end = deadline(until, dry_run=dry_run)
    load_torch()
    from hornbook.run.checkpoints.bound import recipe_in_force
    from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
    from hornbook.run.job.job import Start
    from hornbook.run.job.start.init_from import init_from_import, keep_model
    from hornbook.run.job.start.run_reference import keep_reference, with_reference

    if resume not in (None, "auto"):
        raise UsageError(f"--resume {resume}: the only value is auto; `hornbook resume RUN` continues a run")
    resolved = resolve_words(words, *([] if data is None else [f"data.path={data}"]))
    if rank is not None:
        return simulate_rank(resolved, world, rank)
    run = RunDir(out or runs_folder() / resolved.recipe.name)
    if watch and not dry_run:
        watch_beside(run)
    if resume == "auto" and run.recipe.is_file():
        before = recipe_in_force(run)
        resolved = keep_reference(resolved, before)
        resolved = resolved if from_ is None else keep_model(resolved, before, str(run.path))
        return run_job(resolved, run, Start("resume", faults=injector(faults), until=end), dry_run=dry_run, world=world)
    init_from = None
    if from_ is not None:
        resolved, init_from = init_from_import(with_reference(resolved, checkpoint_path(from_)), checkpoint_path(from_))
        say(rate_text(resolved))
    start = Start(init_from=init_from, faults=injector(faults), until=end)
    return run_job(resolved, run, start, dry_run=dry_run, world=world)


def _check_rank(rank: int, others: Mapping[str, Path | str | None], *, dry_run: bool) -> None:
    """Raise UsageError where `--rank` stands without `--dry-run`, or beside options that it does not go with."""
    if not dry_run:
        raise UsageError(f"--rank {rank}: ranks are numbered by their launcher; --rank is for --dry-run alone")
    for option, given in others.items():
        if given is not None:
            raise UsageError(f"{option} {given}: --rank {rank} builds a rank of the recipe alone; leave {option} out")


def injector(plan: Path | None) -> "FaultInjector | None":
    """What injects the faults of a plan; None where none is given."""
    from hornbook.run.job.fault_plan import read_plan
    from hornbook.run.job.faults import FaultInjector

    return None if plan is None else FaultInjector(read_plan(plan))


def rate_text(resolved: Resolved) -> str:
    """A line with the learning rate of a run that starts from weights, and the origin of that setting."""
    origin = resolved.origins.get("optim.lr", "default")
    given = origin in (COMMAND_LINE, "environment HORNBOOK_SET")
    given = given or (origin != "default" and isinstance(resolved.recipe.text.labels, Dialogue))  # recipes to fine-tune
    hint = "" if given else "; it may suit training from scratch only: --optim.lr VALUE sets another"
    return f"learning rate {resolved.recipe.optim.lr:g} ({origin}){hint}"


def deadline(until: str | None, *, dry_run: bool) -> float | None:
    """When the run has to have stopped, in seconds since 1970; None: nothing says so. Raises UsageError."""
    from hornbook.run.job.deadline import read_deadline

    return read_deadline(until, {} if dry_run else os.environ, time.time())


def resume(
    words: RunWords = None,
    *,
    data: Annotated[Path | None, typer.Option(help="Where the run's data are now, if they were moved.")] = None,
    until: Until = None,
    faults: Faults = None,
    dry_run: DryRun = False,
) -> Result | Exit:
    """Continue a run exactly from its newest checkpoint, with changes to settings that may change."""
    end = deadline(until, dry_run=dry_run)
    load_torch()
    from hornbook.run.job.directory import check_directory
    from hornbook.run.job.job import Start

    run, overrides = _named_run(words, "hornbook resume RUN")
    check_directory(run, "resume")
    overrides += [] if data is None else [f"data.path={data}"]
    start = Start("resume", faults=injector(faults), until=end)
    return run_job(resolve(str(run.recipe), overrides), run, start, dry_run=dry_run, settings_of_a_run=True)


def fork(
    words: RunWords = None,
    *,
    out: Annotated[Path, typer.Option(metavar="RUN2", help="The new run directory.")],
    at: Annotated[
        int | None, typer.Option(metavar="STEP", help="Step of the checkpoint to start from; by default the newest.")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            help="More text: train on it for one pass, or for --train.tokens in all, with the rate re-warmed."
        ),
    ] = None,
    until: Until = None,
    dry_run: DryRun = False,
) -> Result | Exit:
    """Start a new run from the weights, moments and clock of another. All settings but the model's shape may change.

    --data gives a run, finished or not, more text, with tokens of its tokenizer (`hornbook tokenize --tokenizer RUN`).
    """
    end = deadline(until, dry_run=dry_run)
    load_torch()
    from hornbook.run.checkpoints.bound import recipe_in_force, refuse_edited
    from hornbook.run.job.continuing import more_data
    from hornbook.run.job.job import Start
    from hornbook.run.job.start.init_from import checkpoint_step, init_from_fork

    parent, overrides = _named_run(words, "hornbook fork RUN --out RUN2")
    if not parent.recipe.is_file():
        raise UsageError(f"{parent.path} holds no run: name a run directory")
    refuse_edited(parent)
    old = recipe_in_force(parent, before=checkpoint_step(parent, at))
    overrides += [] if data is None else [f"data.path={data}"]
    resolved = resolve(str(parent.recipe), overrides)
    if old != recipe_in_force(parent):  # the parent was told other settings after this checkpoint
        given = [environment_source(os.environ), command_line_source(overrides)]
        resolved = override(Resolved(old, resolved.origins), given)
    init_from = init_from_fork(parent, at, old, resolved.recipe)
    if data is not None:
        words, init_from = more_data(resolved, parent, init_from)
        resolved = override(resolved, [command_line_source(words)])
    if resolved.origins.get("name", "") != COMMAND_LINE:
        resolved = Resolved(resolved.recipe.model_copy(update={"name": out.name}), resolved.origins | {"name": "--out"})
    return run_job(
        resolved, RunDir(out), Start(init_from=init_from, until=end), dry_run=dry_run, settings_of_a_run=True
    )


def reference(
    words: Words = None,
    *,
    data: Annotated[Path, typer.Option(help="A folder written by `hornbook tokenize`, of preferences or ratings.")],
    from_: Annotated[Path, typer.Option("--from", metavar="RUN|CHECKPOINT", help="The reference model.")],
) -> Result:
    """Compute what the reference model says of every answer, once, and keep it beside the data (DATA/reference).

    Give the recipe and settings of the run to come: its rows, its precision and its objective.
    """
    load_torch()
    from hornbook.run.checkpoints.find_checkpoint import checkpoint_path
    from hornbook.run.job.start.run_reference import compute_references

    recipe = resolve_words(words, f"data.path={data}").recipe
    with progress_bar() as progress:
        found = compute_references(recipe, checkpoint_path(from_), progress)
    lines = [f"{source}: {path}" for source, path in found["files"].items()]
    text = "\n".join([f"reference {found['digest']} ({found['reference']})", *lines])
    return Result(found, text, notes=[f"next: hornbook train RECIPE --data {quoted(data)} --from {quoted(from_)}"])


def _named_run(words: list[str] | None, usage: str) -> tuple[RunDir, list[str]]:
    """(the run that free words name, overrides)."""
    target, overrides = split_target(words, "run directory")
    if target is None:
        raise UsageError(f"name a run: {usage}")
    return RunDir(target), overrides
