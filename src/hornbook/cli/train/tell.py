"""`hornbook tell`: ask a run to save, to stop, or to change settings at a step boundary."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, split_targets
from hornbook.errors import UsageError, quoted
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import summarize

if TYPE_CHECKING:
    from hornbook.run.job.control import Request
    from hornbook.run.ledger.interventions import SettingChange

TellWords = Annotated[
    list[str] | None,
    typer.Argument(metavar="RUN [save|stop|KEY=VALUE...]", help="A run directory, and what it shall do or change."),
]


def tell(
    words: TellWords = None,
    *,
    at: Annotated[
        str | None,
        typer.Option(metavar="STEP|+STEPS", help="After which step, or in how many steps; by default at once."),
    ] = None,
    reason: Annotated[str, typer.Option(help="Why; the ledger keeps it.")] = "",
    blend: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Of a new activation: how long it takes to replace the old one."),
    ] = None,
    rewarm: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="How long the learning rate takes to rise again, from 0."),
    ] = None,
    dry_run: DryRun = False,
) -> Result:
    """Ask a run to save, to stop, or to change settings, such as optim.lr=1e-4, while it trains.

    The run answers in its ledger (`hornbook runs show RUN`) with the step at which a change took effect, or why it was
    refused; a resume makes the change again at the same step. A run that has stopped is told for when it goes on.
    """
    from hornbook.run.job.ask import ask

    targets, settings = split_targets(words)
    run, action = _target(targets, settings)
    spans = {key: value for key, value in (("blend", blend), ("rewarm", rewarm)) if value is not None}
    asked = ask(run, action, settings, reason=reason, at=at, spans=spans, dry_run=dry_run)
    request, changes = asked.request, asked.changes
    file = None if asked.file is None else str(asked.file)
    value = {"run": str(run.path), "file": file, "changes": [asdict(each) for each in changes]}
    value |= request.model_dump(mode="json", exclude={"settings"})
    return Result(value, _text(run, request, changes, dry_run=dry_run))


def _target(targets: list[str], settings: list[str]) -> tuple[RunDir, str]:
    """(the run, `save`, `stop` or `set`) that free words name."""
    usage = "hornbook tell RUN save | stop | KEY=VALUE..."
    if not targets:
        raise UsageError(f"name a run: {usage}")
    run, actions = RunDir(Path(targets[0])).must_exist(), targets[1:]
    if settings and not actions:
        return run, "set"
    if not settings and len(actions) == 1 and actions[0] in ("save", "stop"):
        return run, actions[0]
    raise UsageError(f"say one thing, {' '.join([*actions, *settings]) or 'nothing'} is not: {usage}")


def _text(run: RunDir, request: "Request", changes: "tuple[SettingChange, ...]", *, dry_run: bool) -> str:
    what = [str(each) for each in changes] or [request.action if request.action != "set" else "nothing changes"]
    when = "at the next step" if request.at_step is None else f"after step {request.at_step:,}"
    status = summarize(run).status
    waits = "" if status == "running" else f"; it is {status}, and is told when it goes on"
    asked = "would be asked" if dry_run else "is asked"
    lines = [f"{run.path} {asked}, {when}{waits}:", *(f"  {line}" for line in what)]
    for each in changes:
        if each.key == "optim.lr" and each.old:
            ratio = f"{each.new / each.old:.3g} times what the schedule has there"
            lines.append(
                f"optim.lr is the schedule's peak: the rate of the next step is {ratio}; the run's log says it"
            )
    return "\n".join([*lines, f"`hornbook runs show {quoted(run.path)}` shows what came of it"])
