"""`hornbook resume`: continue a run, bit for bit as if it had not stopped."""

from pathlib import Path

from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, RunWords, split_target
from hornbook.cli.train.training import load_torch, run_job
from hornbook.errors import Exit, UsageError


def resume(words: RunWords = None, dry_run: DryRun = False) -> Result | Exit:
    """Continue a run exactly from its newest checkpoint, with changes to settings that may change."""
    load_torch()
    from hornbook.files.run_directory import RunDir
    from hornbook.run.job import Start
    from hornbook.run.launch.launch import check_directory
    from hornbook.settings.resolve import resolve

    target, overrides = split_target(words, "run directory")
    if target is None:
        raise UsageError("name a run: hornbook resume RUN")
    run = RunDir(Path(target))
    check_directory(run, "resume")
    return run_job(resolve(str(run.recipe), overrides), run, Start("resume"), dry_run=dry_run)
