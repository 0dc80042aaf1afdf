"""`hornbook tell`: ask a run to save, to stop, or to change settings at a step boundary."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError

from hornbook.cli.result import Result
from hornbook.cli.shell import DryRun, split_targets
from hornbook.errors import UsageError, quoted
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import summarize
from hornbook.settings.resolve import Resolved

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
    from hornbook.run.job.control import write_request

    targets, settings = split_targets(words)
    run, action = _target(targets, settings)
    state = run.read_state() or {}
    if state.get("status") == "finished":
        raise UsageError(
            f"{run.path} has finished: `hornbook resume {quoted(run.path)} --train.tokens N` makes it longer"
        )
    spans = {key: value for key, value in (("blend", blend), ("rewarm", rewarm)) if value is not None}
    request = _request(action, settings, reason, _step(at, int(state.get("step") or 0)), spans)
    changes = _changes(run, settings) if settings else ()
    file = None if dry_run else str(write_request(run, request))
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


def _step(at: str | None, now: int) -> int | None:
    """The step that `--at` names, of a run at step `now`."""
    if at is None:
        return None
    if not re.fullmatch(r"\+?[0-9]+", at):
        raise UsageError(f"--at {at}: write a step such as 1200, or +200 for 200 steps from now")
    step = int(at) + (now if at.startswith("+") else 0)
    if step < now:
        raise UsageError(f"--at {at}: the run is at step {now:,} already; leave it out, or name a later step")
    return step


def _request(action: str, settings: list[str], reason: str, at_step: int | None, spans: dict[str, str]) -> "Request":

    from hornbook.run.job.control import Request

    try:
        return Request.model_validate(
            {"action": action, "reason": reason, "at_step": at_step, "settings": settings, **spans}
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"--{part} " for part in first["loc"])
        raise UsageError(f"{where}{first['msg'].removeprefix('Value error, ')}") from None


def _changes(run: RunDir, settings: list[str]) -> "tuple[SettingChange, ...]":
    """The changes of the recipe in force now; what is wrong with them is said before anything is written."""
    from hornbook.run.checkpoints.bound import recipe_in_force
    from hornbook.run.ledger.interventions import propose

    return propose(Resolved(recipe_in_force(run), {}), settings)


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
