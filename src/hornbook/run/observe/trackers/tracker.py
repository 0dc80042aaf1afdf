"""Trackers get every step and evaluation in a thread of their own: nothing that they do stops or slows a run.

What is to be sent waits in a queue; where the queue is full it is dropped. The first error, the first drop and a
tracker that does not end are each told once, and the run goes on without.
"""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Protocol, Self

from hornbook.run.ledger.step_report import Step

QUEUE = 16_384
"""Records that may wait."""
CLOSE_SECONDS = 10.0
"""Longest wait for a tracker at the end of a run: for what is in the queue, then for it to close."""
LEAVE_SECONDS = 0.5
"""The same where a second signal asked to leave at once."""


class Tracker(Protocol):
    """What one kind of tracker does; every call is made by one thread."""

    name: str
    """For messages: `wandb`."""

    def step(self, record: Mapping[str, Any]) -> None:
        """Take a line of metrics.jsonl. Any exception ends the tracker."""

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Take an evaluation as the ledger has it."""

    def sample(self, record: Mapping[str, Any]) -> None:
        """Take a sample of text, as RUN/samples has it."""

    def close(self) -> None:
        """Finish; called once, after an exception of another call too."""

    def abandon(self) -> None:
        """Let the process end without it; called by another thread where `close` does not return in time."""


class TrackerThread:
    """An observer of steps and a listener of the ledger, which a thread passes on to a tracker."""

    def __init__(self, tracker: Tracker, warn: Callable[[str], None], size: int = QUEUE) -> None:
        self._tracker, self._warn = tracker, warn
        self._queue = queue.Queue[tuple[str, Mapping[str, Any]] | None](size)
        self._thread = threading.Thread(target=self._work, name=f"tracker-{tracker.name}", daemon=True)
        self._error: BaseException | None = None
        self._told: set[str] = set()
        self._dropped = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, KeyboardInterrupt):
            self.close(LEAVE_SECONDS)
        else:
            self.close()

    def __call__(self, step: Step) -> None:
        """Pass on the metrics of a step."""
        self._put("step", step.record())

    def listen(self, record: Mapping[str, Any]) -> None:
        """Pass on an evaluation; ignore other records of the ledger."""
        if record["kind"] == "evaluation":
            self._put("evaluation", record)

    def sample(self, record: Mapping[str, Any]) -> None:
        """Pass on a sample of text."""
        self._put("sample", record)

    def _put(self, what: str, record: Mapping[str, Any]) -> None:
        """Never waits."""
        self._tell_error()
        if self._error is not None:
            return
        try:
            self._queue.put_nowait((what, record))
        except queue.Full:
            self._dropped += 1
            self._tell("full", f"{self._tracker.name} is too slow: some steps do not reach it")

    def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """Wait for what is in the queue, `seconds` at most, then leave the thread to itself."""
        if not self._thread.is_alive():
            self._tell_error()
            return
        try:
            self._queue.put(None, timeout=seconds)
        except queue.Full:
            pass
        else:
            self._thread.join(seconds)
        self._tell_error()
        if self._thread.is_alive():
            self._tell("hung", f"{self._tracker.name} does not end: the run ends without it")
            self._tracker.abandon()

    def _work(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                getattr(self._tracker, item[0])(item[1])
        except BaseException as error:  # noqa: BLE001 - of another package: SystemExit too
            self._error = error
        try:
            self._tracker.close()
        except BaseException as error:  # noqa: BLE001
            self._error = self._error or error

    def _tell_error(self) -> None:
        if self._error is not None:
            self._tell("error", f"{self._tracker.name} gets nothing any more: {self._error or repr(self._error)}")

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._warn(f"warning: {text}")
