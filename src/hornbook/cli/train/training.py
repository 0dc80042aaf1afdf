"""What train, resume and fork share: they launch a job, and say how it ended."""

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from hornbook.cli.result import Result
from hornbook.cli.shell import importing, people
from hornbook.cli.train.dry_run import describe_job, summary_text
from hornbook.errors import Exit, quoted
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import fullest, newest_evaluation
from hornbook.progress import progress_bar
from hornbook.run.checkpoints.commit import newest_step
from hornbook.settings.resolve import Resolved
from hornbook.text.config.labels import Dialogue

if TYPE_CHECKING:
    from hornbook.run.job.job import Start


def load_torch() -> None:
    """Import torch and the training loop, with a progress bar because it takes seconds."""
    with progress_bar() as progress, importing():
        progress("load torch", 0, None)
        import hornbook.run.launch.launch  # noqa: F401 - imported here for the progress bar


def run_job(
    resolved: Resolved,
    run: RunDir,
    start: "Start",
    *,
    dry_run: bool,
    world: int | None = None,
    settings_of_a_run: bool = False,
) -> Result | Exit:
    """Launch the job, or under `dry_run` say what it would be. Rank 0 answers; the others return their exit code.

    world: the number of ranks that was asked for; None: that of the recipe, a launcher, or this machine.
    settings_of_a_run: whether settings come from the files of a run, which somebody else may have made.
    """
    from hornbook.run.job.start.known_alerts import keep_alerts, refuse_unknown_alerts
    from hornbook.run.launch.launch import launch
    from hornbook.run.launch.launcher_env import Node, launched
    from hornbook.run.launch.settle import settle_ranks

    resolved = settle_ranks(resolved, os.environ, world)
    place = launched(os.environ, resolved.recipe.parallel)
    number = 0 if place is None else place.number if isinstance(place, Node) else place.rank
    follows = number > 0  # rank 0 answers, or the process that started it
    if dry_run and follows:
        return Exit.DONE
    if settings_of_a_run and not follows:
        refuse_unknown_alerts(resolved, run)
    if dry_run:
        summary = describe_job(resolved, run, start, measure=True)
        return Result(summary, summary_text(summary))
    if not follows:
        keep_alerts(resolved, run)
    start = replace(start, argv=tuple(sys.argv), quiet=people().quiet)
    code = launch(resolved, run, start)
    if follows:
        return code
    result = describe_result(run)
    lines = [ending(result), next_text(resolved, run, result["status"])]
    if start.faults is not None and place is None and code == Exit.DONE and (left := start.faults.left()):
        lines.append(left)
    return Result(result, code=code, notes=[escape(line) for line in lines])


def ending(result: dict[str, Any]) -> str:
    """Status and step of a run, from `describe_result`; it has no step if a signal stopped it before the first one."""
    step, saved = result["step"], result.get("saved_step")
    at = "before its first step" if step is None else f"at step {step:,}"
    if step is not None and saved is not None and saved < step:
        at += f", saved at step {saved:,}" if saved >= 0 else ", without a checkpoint"
    return f"{result['status'] or 'ended'} {at}: {result['run']}"


def next_text(resolved: Resolved, run: RunDir, status: str | None) -> str:
    """A line with the commands to run next."""
    if status != "finished":
        return f"next: hornbook resume {quoted(run.path)}"
    recipe = resolved.recipe
    answers = isinstance(recipe.text.labels, Dialogue) and recipe.model.head.kind == "lm"
    use = f"hornbook chat {quoted(run.path)}" if answers else use_command(recipe.model.head.kind, str(run.path))
    return f"next: {use}; hornbook export {quoted(run.path)} --out MODEL"


_OF_TOKENS = ("lm", "masked", "none")
"""Kinds of heads that predict tokens; the others predict labels."""


def use_command(head: str, target: str) -> str:
    """The command that uses a model, by the kind of its head."""
    if head == "replaced":
        return f"hornbook train RECIPE --from {quoted(target)} with a head of labels"
    if head not in _OF_TOKENS:
        return f"hornbook predict {quoted(target)} FILE"
    return f"hornbook generate {quoted(target)} -p " + ("'TEXT [MASK]'" if head == "masked" else "TEXT")


def describe_result(run: RunDir) -> dict[str, Any]:
    """The state of a run from state.json, and its newest evaluation."""
    state: dict[str, Any] = dict(run.read_state() or {})
    keys = ("status", "attempt", "step", "tokens", "total_tokens", "loss")
    newest = newest_evaluation(run)
    result = {"run": str(run.path)} | {key: state.get(key) for key in keys}
    result["saved_step"] = newest_step(run.checkpoints)
    if newest is not None:
        result["evaluation"] = {"step": newest["step"], **fullest(newest)["all"]}
    return result
