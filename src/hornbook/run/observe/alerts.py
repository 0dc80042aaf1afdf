"""Alerts (`log.alerts`): who is told of events of a run, as the ledger notes them.

A command or a webhook runs in a process of its own (`hornbook.run.observe.deliver`), which outlives the run if need be:
neither a slow address nor a command that hangs holds a step. What fails is told once, of the last event too: the end of
a run waits for deliveries that are under way, `LAST_SECONDS` from their start at most.
"""

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hornbook.files.run_directory import RunDir
from hornbook.settings.training import AlertConfig, CommandAlert, FileAlert, TerminalAlert, WebhookAlert

MOST_UNDER_WAY = 8
"""Deliveries at once; further ones are dropped until one has ended."""
LAST_SECONDS = 2.0
"""Age up to which the end of a run waits for a delivery."""
_SAVE_FAILED = "the save failed"


@dataclass
class _Delivery:
    process: "subprocess.Popen[bytes]"
    name: str
    warn: Callable[[str, str], None]
    """Takes the name and what is wrong."""
    started: float = field(default_factory=time.monotonic)


_UNDER_WAY: list[_Delivery] = []
"""Deliveries of this process that may not have ended; they may outlive the run that began them."""


class Alerts:
    """A listener of the ledger."""

    def __init__(self, configs: Sequence[AlertConfig], run: RunDir) -> None:
        self._configs, self._run = configs, run
        self._told: set[str] = set()
        self.show: Callable[[str], None] = to_stderr
        """Shows a line; a run with consoles sets theirs."""

    def __call__(self, record: Mapping[str, Any]) -> None:
        """Tell those who asked for this event. Never raises, never waits."""
        look_back()
        event = event_of(record)
        for config in self._configs:
            if event in config.events:
                try:
                    self._tell(config, message(event, record, self._run))
                except (OSError, ValueError) as error:
                    self._warn(name_of(config), str(error))

    def _tell(self, config: AlertConfig, found: dict[str, Any]) -> None:
        if isinstance(config, TerminalAlert):
            text = f": {found['text']}" if found["text"] else ""
            self.show(f"alert: {found['event']} at step {found['step']:,} of {found['run']}{text}")
            if sys.stderr.isatty():
                sys.stderr.write("\a")
        elif isinstance(config, FileAlert):
            with (self._run.path / config.path).open("a", encoding="utf-8") as file:
                file.write(json.dumps(found) + "\n")
        else:
            self._deliver(config, found)

    def _deliver(self, config: CommandAlert | WebhookAlert, found: dict[str, Any]) -> None:
        if len(_UNDER_WAY) >= MOST_UNDER_WAY:
            self._warn(name_of(config), f"{MOST_UNDER_WAY} are under way, further ones are dropped")
            return
        target = config.argv if isinstance(config, CommandAlert) else config.url
        request = json.dumps({"kind": config.kind, "target": target, "message": found}).encode()
        script = Path(__file__).with_name("deliver.py")  # not as a module: it needs nothing of the package
        process = subprocess.Popen(
            [sys.executable, "-I", str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # the end of a rank ends its process group
        )
        _UNDER_WAY.append(_Delivery(process, name_of(config), self._warn))
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError), process.stdin:
            process.stdin.write(request)  # smaller than a pipe

    def _warn(self, name: str, text: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self.show(f"warning: an alert could not be given ({name}): {text}")


def look_back() -> None:
    """Tell of deliveries that failed."""
    for each in [each for each in _UNDER_WAY if each.process.poll() is not None]:
        _UNDER_WAY.remove(each)
        if each.process.returncode:
            each.warn(each.name, f"exit code {each.process.returncode}")


def await_deliveries() -> None:
    """Wait for the newest deliveries, LAST_SECONDS at most, and tell of those that failed."""
    while any(time.monotonic() - each.started < LAST_SECONDS for each in _UNDER_WAY):
        look_back()
        time.sleep(0.01)
    look_back()


def name_of(config: AlertConfig) -> str:
    """The kind of an alert, and its program, or its address without the path, which may be a secret."""
    if isinstance(config, CommandAlert):
        return f"{config.kind} {config.argv[0]}"
    if not isinstance(config, WebhookAlert):
        return config.kind
    parts = urlsplit(config.url)
    host = parts.netloc.rpartition("@")[2]
    return f"{config.kind} {parts.scheme}://{host}" if host else f"{config.kind} {config.url}"


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
