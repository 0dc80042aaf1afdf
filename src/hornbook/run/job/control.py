"""Steers a running run: stop signals, a deadline, requests of people as files in `control/`, and the heartbeat.

A request is a small JSON file that appears atomically (written aside, then renamed): `{"action": "save" or "stop",
"reason": text, "at_step": optional}`, or `{"action": "set", "settings": ["optim.lr=1e-4"], ...}`. The loop looks once a
step, writes the acknowledgement to the ledger, then deletes the file and acts. The acknowledgement of a `set` is its
intervention (`hornbook.run.loop.intervene`); a file of the same name is not taken a second time, so that a kill
before its removal makes no difference. A file named STOP in the run directory is a switch, not a request: the run
stops, and does not start again until someone removes it.
"""

import contextlib
import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, model_validator

from hornbook.errors import UsageError
from hornbook.files.durable import TEMPORARY, write_atomic
from hornbook.files.filesystem import exists, is_file, list_folder
from hornbook.files.run_directory import RunDir
from hornbook.run.job.deadline import Deadline
from hornbook.run.job.heartbeat import Heartbeat
from hornbook.run.job.signals import STOP_SIGNALS, StopSignals
from hornbook.run.ledger.ledger import Position, RunWriter
from hornbook.settings.fields import Config, Duration

if TYPE_CHECKING:
    from hornbook.run.job.faults import FaultInjector

REASONS = ("", *(number.name for number in STOP_SIGNALS), "request", "STOP file", "full disk", "deadline")
"""Sources of a stop; ranks exchange the index, because a collective reduces numbers."""


class Request(Config):
    """One request of a person."""

    action: Literal["save", "stop", "set"]
    reason: str = ""
    """Why; it goes into the ledger."""
    at_step: int | None = None
    """Steps done when it is due; by default it is due at once."""
    settings: list[str] = Field(default=[])
    """Of `set`: changes as `key=value`."""
    blend: Duration | None = None
    """Of `set`: over what span a new activation replaces the old one; by default at once."""
    rewarm: Duration | None = None
    """Of `set`: over what span the learning rate rises after a change of optimizer; by default as the change asks."""

    @model_validator(mode="after")
    def _check(self) -> "Request":
        if (self.action == "set") != bool(self.settings):
            raise ValueError('settings belong to the action "set", and that needs some')
        return self


def write_request(run: RunDir, request: Request) -> Path:
    """Write a request where the loop finds it; returns the file. Raises StorageError."""
    path = run.control / f"{time.time_ns()}-{os.getpid()}.json"
    write_atomic(path, request.model_dump_json(exclude_defaults=True) + "\n")
    return path


@dataclass(frozen=True)
class ControlRequests:
    """The actions requested before the next step."""

    save: bool = False
    stop: str | None = None
    """Source of the stop, one of REASONS; None: no stop."""
    changes: int = 0
    """Number of requests to change settings; of what they say only rank 0 knows (`Control.take_change`)."""
    verdict: int = 0
    """The largest of what the ranks' guards say."""


def stop_file(run: RunDir) -> Path:
    """The switch that holds a run."""
    return run.path / "STOP"


def refuse_if_held(run: RunDir) -> None:
    """Raise UsageError while the STOP file is there: a scheduler must not start the run again and again."""
    if exists(stop_file(run)):
        raise UsageError(f"{stop_file(run)} holds this run: remove the file to go on")


class Control:
    """All sources of a save or a stop, and the heartbeat. Ranks other than 0 see stop signals only."""

    def __init__(
        self,
        output: RunWriter,
        signals: StopSignals,
        heartbeat: Heartbeat | None = None,
        faults: "FaultInjector | None" = None,
        deadline: Deadline | None = None,
    ) -> None:
        """`faults`: injects what the plan of the command asks for; None: nothing. `deadline`; None: there is none."""
        self._output, self.signals, self.faults = output, signals, faults
        self._changes: list[tuple[Path, Request]] = []
        self._answered = set(output.ledger.past.answered)
        self.heartbeat = heartbeat or Heartbeat()
        self.deadline = deadline or Deadline(None)

    def enter(self, phase: str, at: Position) -> None:
        """Report the phase that this rank enters now (`heartbeat.PHASES`) and the position of the run."""
        self.heartbeat.enter(phase, at)
        if self.faults is not None:
            self.faults.strike(self.heartbeat.rank, phase, at, self._output, lambda: self.interrupted)

    @property
    def interrupted(self) -> bool:
        """Whether a signal asked to stop, or a deadline is near: long tasks such as an evaluation should end early."""
        return self.signals.received is not None or (self._output.is_rank0 and self.deadline.is_near())

    def poll(
        self, at: Position, all_reduce_max: Callable[[Sequence[int]], list[int]] = list, verdict: int = 0
    ) -> ControlRequests:
        """Take the requests that are due, acknowledge them in the ledger, and return the actions.

        `all_reduce_max` gives the maximum of each number over all ranks: a request seen by one rank goes for all.
        `verdict`: what the guard of this rank says.
        """
        self._changes.clear()
        self.deadline.begin_step()
        taken = [request for path in self._files() if (request := self._take(path, at))]
        save = any(request.action == "save" for request in taken)
        stop = REASONS.index(self._stop_reason(taken))
        save, stop, changes, verdict = all_reduce_max([save, stop, len(self._changes), verdict])
        if stop:
            self._output.ledger.note("stop_requested", at, reason=REASONS[stop])
        return ControlRequests(bool(save), REASONS[stop] or None, changes, verdict)

    def take_change(self) -> tuple[str, Request] | None:
        """The next due request to change settings, with the name of its file; None on ranks other than 0.

        Its file stays until `refuse` or `remove`.
        """
        return (self._changes[0][0].name, self._changes.pop(0)[1]) if self._changes else None

    def refuse(self, file: str, at: Position, problem: str) -> None:
        """Answer a request to change settings that cannot be met, and remove it."""
        self._acknowledge(self._output.run.control / file, at, {"accepted": False, "reason": problem})

    def remove(self, file: str) -> None:
        """Remove a request that the ledger has."""
        if self._output.is_rank0:
            with contextlib.suppress(OSError):
                (self._output.run.control / file).unlink()

    def _stop_reason(self, taken: list[Request]) -> str:
        if self.signals.received is not None:
            return self.signals.received
        if any(request.action == "stop" for request in taken):
            return "request"
        if self._output.is_disk_full:
            return "full disk"
        if not self._output.is_rank0:
            return ""
        if exists(stop_file(self._output.run)):
            return "STOP file"
        return "deadline" if self.deadline.is_due() else ""

    def _files(self) -> list[Path]:
        if not self._output.is_rank0:
            return []
        try:
            there = list_folder(self._output.run.control)
            return [path for path in there if not path.name.startswith(TEMPORARY) and is_file(path)]
        except OSError:
            return []  # without the folder there are no requests

    def refuse_rest(self, at: Position) -> None:
        """Answer and remove requests that came too late, or for a later step: the run has finished."""
        for path in self._files():
            self._acknowledge(path, at, {"accepted": False, "reason": "the run had finished"})

    def _take(self, path: Path, at: Position) -> Request | None:
        """The request in a file that is due now; a file that is no request is refused in the ledger."""
        request = None
        try:
            request = Request.model_validate(json.loads(path.read_bytes()))
            if request.at_step is not None and at.step < request.at_step:
                return None
            if request.action == "set":
                return self._keep_change(path, request, at)
            answer = {"accepted": True, "action": request.action, "reason": request.reason}
        except (ValueError, OSError) as error:  # a ValidationError is a ValueError
            answer = {"accepted": False, "reason": f"not a request: {error}"}
        self._acknowledge(path, at, answer)
        return request

    def _keep_change(self, path: Path, request: Request, at: Position) -> None:
        if path.name in self._answered:  # the ledger has it, and a kill came before its removal
            self._acknowledge(path, at, {"accepted": False, "reason": "a request of this name was met before"})
            return
        self._answered.add(path.name)
        self._changes.append((path, request))

    def _acknowledge(self, path: Path, at: Position, answer: dict[str, Any]) -> None:
        self._output.ledger.note("request", at, file=path.name, **answer)
        self.remove(path.name)
