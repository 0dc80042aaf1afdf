"""What a person asks of a running run, as files in `control/`.

A request is a small JSON file that appears as a whole (written aside, then renamed): `{"action": "save" or
"stop", "reason": text, "at_step": optional}`. The loop looks once a step, writes the acknowledgement to the
ledger, then deletes the file and acts. A file named STOP in the run directory is a switch, not a request: the
run stops, and does not start again, until someone removes it.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from hornbook.errors import UsageError
from hornbook.files.durable import TEMPORARY, write_atomic
from hornbook.files.filesystem import exists
from hornbook.files.run_directory import RunDir
from hornbook.run.launch.signals import STOP_SIGNALS, StopSignals
from hornbook.run.ledger import Ledger, Position
from hornbook.settings.fields import Config

REASONS = ("", *(number.name for number in STOP_SIGNALS), "request", "STOP file")
"""Who may ask to stop; as numbers, ranks can agree on one."""


class Request(Config):
    """One request of a person."""

    action: Literal["save", "stop"]
    """Save now, or save and stop."""
    reason: str = ""
    """Why; it goes into the ledger."""
    at_step: int | None = None
    """Wait for this step."""


@dataclass(frozen=True)
class Orders:
    """What the loop should do before its next step."""

    save: bool = False
    stop: str | None = None
    """Who asked to stop."""


def write_request(run: RunDir, request: Request) -> Path:
    """Put a request where the loop finds it; returns the file."""
    path = run.control / f"{time.time_ns()}-{os.getpid()}.json"
    write_atomic(path, request.model_dump_json() + "\n")
    return path


def stop_file(run: RunDir) -> Path:
    """The switch that holds a run."""
    return run.path / "STOP"


def refuse_if_held(run: RunDir) -> None:
    """Raise UsageError while the STOP file is there: a scheduler must not start the run again and again."""
    if exists(stop_file(run)):
        raise UsageError(f"{stop_file(run)} holds this run: remove the file to go on")


class Inbox:
    """Everything that may ask this run to save or to stop; a rank that does not lead hears signals only."""

    def __init__(self, run: RunDir, ledger: Ledger, signals: StopSignals, *, leads: bool = True) -> None:
        self._run, self._ledger, self._signals, self._leads = run, ledger, signals, leads

    def silent(self) -> "Inbox":
        """For a rank that does not lead."""
        return Inbox(self._run, self._ledger.silent(), self._signals, leads=False)

    @property
    def interrupted(self) -> bool:
        """Whether a signal asked to stop: what takes long should give way."""
        return self._signals.received is not None

    def show_interrupts(self) -> None:
        """Someone shows `interrupted` from now on: a line on stderr would be written into a live panel."""
        self._signals.announces = False

    def poll(self, at: Position, agree: Callable[[Sequence[int]], list[int]] = list) -> Orders:
        """Take the requests that are due, acknowledge them in the ledger, and say what they ask for.

        `agree` is `World.all_reduce_max`: the largest of each number over all ranks, so that all do what one was asked.
        """
        taken = [request for path in self._files() if (request := self._take(path, at))]
        save = any(request.action == "save" for request in taken)
        save, reason = agree([save, REASONS.index(self._stop_reason(taken))])
        if reason:
            self._ledger.note("stop_requested", at, reason=REASONS[reason])
        return Orders(bool(save), REASONS[reason] or None)

    def _stop_reason(self, taken: list[Request]) -> str:
        if self._signals.received is not None:
            return self._signals.received
        if any(request.action == "stop" for request in taken):
            return "request"
        return "STOP file" if self._leads and exists(stop_file(self._run)) else ""

    def _files(self) -> list[Path]:
        if not self._leads:
            return []
        try:
            with os.scandir(self._run.control) as entries:
                names = [entry.name for entry in entries if entry.is_file() and not entry.name.startswith(TEMPORARY)]
        except OSError:
            return []  # whoever deletes the folder asks for nothing
        return [self._run.control / name for name in sorted(names)]

    def refuse_rest(self, at: Position) -> None:
        """The run has finished: requests that came too late, or for a later step, are answered and removed."""
        for path in self._files():
            self._ledger.note("request", at, file=path.name, accepted=False, reason="the run had finished")
            _remove(path)

    def _take(self, path: Path, at: Position) -> Request | None:
        """The request in a file that is due now; a file that is no request is refused in the ledger."""
        fields: dict[str, Any] = {"file": path.name}
        request = None
        try:
            request = Request.model_validate(json.loads(path.read_bytes()))
            if request.at_step is not None and at.step < request.at_step:
                return None
            fields |= {"accepted": True, "action": request.action, "reason": request.reason}
        except (ValueError, ValidationError, OSError) as error:
            fields |= {"accepted": False, "reason": f"not a request: {error}"}
        self._ledger.note("request", at, **fields)
        _remove(path)
        return request


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()
