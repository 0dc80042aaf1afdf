"""`hornbook fork`: start a new run from a checkpoint of another, with other settings."""

from pathlib import Path
from typing import Annotated

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, RunWords, split_target
from hornbook.cli.train.training import load_torch, run_job
from hornbook.errors import Exit, UsageError


def fork(
    words: RunWords = None,
    *,
    out: Annotated[Path, typer.Option(metavar="RUN2", help="The new run directory.")],
    at: Annotated[
        int | None, typer.Option(metavar="STEP", help="Step of the checkpoint to start from; by default the newest.")
    ] = None,
    dry_run: DryRun = False,
) -> Result | Exit:
    """Start a new run from the weights, moments and clock of another. All settings but the model's shape may change."""
    load_torch()
    from hornbook.files.run_directory import RunDir
    from hornbook.run.job import Start
    from hornbook.run.start.bound import recipe_in_force, refuse_edited
    from hornbook.run.start.init_from import init_from_fork
    from hornbook.settings.resolve import Resolved, resolve

    target, overrides = split_target(words, "run directory")
    if target is None:
        raise UsageError("name a run: hornbook fork RUN --out RUN2")
    parent = RunDir(Path(target))
    if not parent.recipe.is_file():
        raise UsageError(f"{parent.path} holds no run: name a run directory")
    refuse_edited(parent)
    resolved = resolve(str(parent.recipe), overrides)
    init_from = init_from_fork(parent, at, recipe_in_force(parent), resolved.recipe)
    if resolved.origins.get("name", "") != "command line":
        resolved = Resolved(resolved.recipe.model_copy(update={"name": out.name}), resolved.origins | {"name": "--out"})
    return run_job(resolved, RunDir(out), Start(init_from=init_from), dry_run=dry_run)
