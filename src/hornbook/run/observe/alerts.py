"""Alerts (`log.alerts`): who is told of events of a run, as the ledger notes them.

A command or a webhook runs in a process of its own (`hornbook.run.observe.deliver`), which outlives the run if need be:
neither a slow address nor a command that hangs holds a step. What fails is told once.
"""

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hornbook.files.run_directory import RunDir
from hornbook.run.config import AlertConfig, CommandAlert, FileAlert, TerminalAlert

MOST_UNDER_WAY = 8
"""Deliveries at once; further ones are dropped until one has ended."""
_UNDER_WAY: list[subprocess.Popen[bytes]] = []
"""Deliveries of this process that may not have ended; they may outlive the run that began them."""
_SAVE_FAILED = "the save failed"


class Alerts:
    """A listener of the ledger."""

    def __init__(self, configs: Sequence[AlertConfig], run: RunDir) -> None:
        self._configs, self._run = configs, run
        self._told: set[str] = set()
        self.show: Callable[[str], None] = to_stderr
        """Shows a line; a run with consoles sets theirs."""

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Tell those who asked for this event. Never raises, never waits."""
        self._look_back()
        event = event_of(record)
        for config in self._configs:
            if event in config.events:
                try:
                    self._tell(config, message(event, record, self._run))
                except (OSError, ValueError) as error:
                    self._warn(config.kind, str(error))

    def _tell(self, config: AlertConfig, found: dict[str, Any]) -> None:
        if isinstance(config, TerminalAlert):
            self.show(f"alert: {found['event']} at step {found['step']:,} of {found['run']}: {found['text']}")
            if sys.stderr.isatty():
                sys.stderr.write("\a")
        elif isinstance(config, FileAlert):
            with (self._run.path / config.path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
        else:
            self._deliver(config.kind, config.argv if isinstance(config, CommandAlert) else config.url, found)

    def _deliver(self, kind: str, target: Any, found: dict[str, Any]) -> None:
        if len(_UNDER_WAY) >= MOST_UNDER_WAY:
            self._warn(kind, f"{MOST_UNDER_WAY} are under way, further ones are dropped")
            return
        request = json.dumps({"kind": kind, "target": target, "message": found}).encode()
        script = Path(__file__).with_name("deliver.py")  # not as a module: it needs nothing of the package
        process = subprocess.Popen(
            [sys.executable, "-I", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the end of a rank ends its process group
        )
        _UNDER_WAY.append(process)
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(request)  # smaller than a pipe

    def _look_back(self) -> None:
        """Tell of deliveries that failed."""
        ended = [process for process in _UNDER_WAY if process.poll() is not None]
        for process in ended:
            _UNDER_WAY.remove(process)
            if process.returncode:
                self._warn("delivery", "a command or a webhook failed or did not answer")

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._told:
            self._told.add(kind)
            self.show(f"warning: an alert could not be given ({kind}): {text}")


def event_of(record: Mapping[str, Any]) -> str:
    """The event of a record of the ledger; "" for an end of what alerted before."""
    if record.get("ended"):
        return ""
    if record["kind"] == "warning" and _SAVE_FAILED in record.get("text", ""):
        return "disk"
    return record["kind"]


def message(event: str, record: Mapping[str, Any], run: RunDir) -> dict[str, Any]:
    """What is told: small, and without settings."""
    text = record.get("text") or record.get("cause") or record.get("reason") or record.get("checkpoint") or ""
    where = {"run": run.name, "path": str(run.path.resolve()), "attempt": record["attempt"], "step": record["step"]}
    return {"event": event, **where, "tokens": record["tokens"], "time": record.get("time"), "text": str(text)[:2000]}


def to_stderr(text: str) -> None:
    """Show a line where there is no console."""
    with contextlib.suppress(OSError):
        sys.stderr.write(f"{text}\n")
