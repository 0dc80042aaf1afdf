"""`hornbook resume`: go on with a run, bit for bit as if it had not stopped."""

from pathlib import Path

from hornbook.cli.shell import DryRun, Json, RunWords, split_target
from hornbook.cli.train.training import load_engine, run_job
from hornbook.errors import Exit, UsageError


def resume(words: RunWords = None, dry_run: DryRun = False, as_json: Json = False) -> Exit:
    """Go on with a run exactly where its newest checkpoint is; settings that may change can be given."""
    load_engine()
    from hornbook.files.run_directory import RunDir
    from hornbook.run.job import Start
    from hornbook.run.launch.launch import check_directory
    from hornbook.settings.resolve import resolve

    target, overrides = split_target(words, "run directory")
    if target is None:
        raise UsageError("which run? write hornbook resume RUN")
    run = RunDir(Path(target))
    check_directory(run, "resume")
    return run_job(resolve(str(run.recipe), overrides), run, Start("resume"), dry_run=dry_run, as_json=as_json)
