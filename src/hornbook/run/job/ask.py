"""Requests of people to a run: to save, to stop, or to change settings. Each is checked before it is written."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from hornbook.errors import UsageError, quoted
from hornbook.files.run_directory import RunDir
from hornbook.run.checkpoints.bound import recipe_in_force
from hornbook.run.job.control import Request, write_request
from hornbook.run.ledger.interventions import SettingChange, propose
from hornbook.settings.resolve import Resolved


@dataclass(frozen=True)
class Asked:
    """A request that the run can meet, and what it changes."""

    request: Request
    changes: tuple[SettingChange, ...]
    file: Path | None
    """Where the loop finds it; None where it was only checked."""


def ask(
    run: RunDir,
    action: str,
    settings: Sequence[str] = (),
    *,
    reason: str = "",
    at: str | None = None,
    spans: Mapping[str, str] | None = None,
    dry_run: bool = False,
) -> Asked:
    """Check a request and write it where the run finds it.

    action: `save`, `stop` or `set`. settings: `key=value` words of `set`. at: the step after which it is due, such as
    `1200`, or `+200` for 200 steps from now. spans: `blend` and `rewarm`. Raises UsageError, ConfigError, StorageError.
    """
    state = run.read_state() or {}
    if state.get("status") == "finished":
        raise UsageError(
            f"{run.path} has finished: `hornbook resume {quoted(run.path)} --train.tokens N` makes it longer"
        )
    step = _step(at, int(state.get("step") or 0))
    given = {"action": action, "reason": reason, "at_step": step, "settings": list(settings), **(spans or {})}
    try:
        request = Request.model_validate(given)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = "".join(f"--{part} " for part in first["loc"])
        raise UsageError(f"{where}{first['msg'].removeprefix('Value error, ')}") from None
    changes = propose(Resolved(recipe_in_force(run), {}), settings) if settings else ()
    return Asked(request, changes, None if dry_run else write_request(run, request))


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
