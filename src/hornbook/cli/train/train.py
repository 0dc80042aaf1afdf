"""`hornbook train`: train a model by a recipe on token shards."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, Words, resolve_words, say
from hornbook.cli.train.training import load_torch, run_job
from hornbook.errors import Exit, UsageError
from hornbook.settings.sources import COMMAND_LINE

if TYPE_CHECKING:
    from hornbook.settings.recipe import Recipe
    from hornbook.settings.resolve import Resolved


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
    dry_run: DryRun = False,
) -> Result | Exit:
    """Train a model. Ctrl-C, SIGTERM, SIGHUP and SIGUSR1 save and stop (exit code 75); `hornbook resume` continues.

    A run that starts from weights (--from) is evaluated before its first step.
    """
    load_torch()
    from hornbook.files.run_directory import RunDir
    from hornbook.run.checkpoints.path import checkpoint_path
    from hornbook.run.job import Start
    from hornbook.run.start.init_from import init_from_import

    if resume not in (None, "auto"):
        raise UsageError(f"--resume {resume}: the only value is auto; `hornbook resume RUN` continues a run")
    extra = [] if data is None else [f"data.path={data}"]
    resolved = resolve_words(words, *extra)
    run = RunDir(out or default_folder(resolved.recipe))
    if resume == "auto" and run.recipe.is_file():
        return run_job(resolved, run, Start("resume"), dry_run=dry_run)
    if from_ is None:
        return run_job(resolved, run, Start(), dry_run=dry_run)
    resolved, init_from = init_from_import(resolved, checkpoint_path(from_))
    say(rate_text(resolved))
    return run_job(resolved, run, Start(init_from=init_from), dry_run=dry_run)


def rate_text(resolved: "Resolved") -> str:
    """A line with the learning rate of a run that starts from weights, and the origin of that setting."""
    origin = resolved.origins.get("optim.lr", "default")
    given = origin in (COMMAND_LINE, "environment HORNBOOK_SET")
    hint = "" if given else "; it may suit training from scratch only: --optim.lr VALUE sets another"
    return f"learning rate {resolved.recipe.optim.lr:g} ({origin}){hint}"


def default_folder(recipe: "Recipe") -> Path:
    """NAME in $HORNBOOK_RUNS, or else in ./runs."""
    return Path(os.environ.get("HORNBOOK_RUNS", "runs")) / recipe.name
