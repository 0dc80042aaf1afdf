"""TensorBoard event files (`log.tensorboard`): an observer of steps, and a listener of the ledger for evaluations."""

import contextlib
import importlib
import importlib.util
import math
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from hornbook.errors import HornbookError, UsageError
from hornbook.extras import install_command
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import evaluations, metrics_of, steps_that_count
from hornbook.run.config import LogConfig
from hornbook.run.step_report import Step

_TAGS = {
    "loss": "loss",
    "gradient_norm": "gradient_norm",
    "lr": "learning_rate",
    "tokens_per_second": "tokens_per_second",
    "noise_scale": "noise_scale",
}
_FLUSH_SECONDS = 5
_QUEUE = 4096
"""Events that may wait for the writer's thread, so that a slow disk delays no step."""


def require_tensorboard(config: LogConfig) -> None:
    """Raise UsageError with the remedy where the configuration asks for TensorBoard and it is not installed."""
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UsageError(f"log.tensorboard needs tensorboard, which is not installed: {install_command('track')}")


class EventFiles:
    """Writes RUN/tensorboard. The first error is shown as a warning, and the run goes on without these files.

    Each attempt writes a file of its own, which begins with a mark that withdraws the steps it will repeat
    (`SessionLog.START`). The first file of a run that was trained without them begins with its past.
    """

    def __init__(self, run: RunDir, warn: Callable[[str], None]) -> None:
        self._run, self._warn = run, warn
        self._event: Any = None
        self._summary: Any = None
        """The protobuf messages of event files."""
        self._writer: Any = None
        self._failed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._failed and self._writer is not None:
            with contextlib.suppress(OSError, ValueError):  # the error was shown already
                self._writer.close()
        elif self._writer is not None:
            self._guarded(self._writer.close)

    def __call__(self, step: Step) -> None:
        """Write the metrics of a step."""
        self._guarded(lambda: self._add(step.record(), _of_step(step.record()), purge=step.step))

    def listen(self, record: Mapping[str, Any]) -> None:
        """Write the metrics of an evaluation; ignore other records of the ledger."""
        if record["kind"] == "evaluation":
            self._guarded(lambda: self._add(record, _of_evaluation(record), purge=record["step"] + 1))

    def _guarded(self, act: Callable[[], Any]) -> None:
        if self._failed:
            return
        try:
            act()
        except (HornbookError, OSError, LookupError, TypeError, ValueError) as error:
            self._failed = True
            self._warn(f"warning: TensorBoard files are not written any more: {error}")

    def _add(self, record: Mapping[str, Any], metrics: Iterator[tuple[str, float]], *, purge: int) -> None:
        """Write metrics at the record's step. purge: the step from which on a new file withdraws earlier events."""
        if self._writer is None:
            self._open(purge, record["step"])
        summary, shown = self._summary.Summary, [pair for pair in metrics if math.isfinite(pair[1])]
        values = [summary.Value(tag=tag, simple_value=value) for tag, value in shown]
        self._send(record, summary=summary(value=values))

    def _open(self, purge: int, before: int) -> None:
        """Begin a file; the first of a run begins with all that was recorded before a step."""
        try:
            self._event = importlib.import_module("tensorboard.compat.proto.event_pb2")
            self._summary = importlib.import_module("tensorboard.compat.proto.summary_pb2")
            module = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        except Exception as error:  # any error of other packages, such as protobuf
            raise OSError(f"tensorboard cannot be imported: {error}") from error
        first = not any(self._run.tensorboard.glob("events.out.tfevents.*"))
        self._writer = module.EventFileWriter(str(self._run.tensorboard), _QUEUE, _FLUSH_SECONDS)
        if not first:
            log = self._event.SessionLog
            self._send({"step": purge, "time": time.time()}, session_log=log(status=log.START))
            return
        for record in steps_that_count(self._run):
            if record["step"] < purge:
                self._add(record, _of_step(record), purge=purge)
        for record in evaluations(self._run):
            if record["step"] < before:
                self._add(record, _of_evaluation(record), purge=purge)

    def _send(self, record: Mapping[str, Any], **content: Any) -> None:
        when = record.get("time") or time.time()
        self._writer.add_event(self._event.Event(wall_time=when, step=record["step"], **content))


def _of_step(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for key, name in _TAGS.items():
        if record.get(key) is not None:
            yield f"train/{name}", record[key]


def _of_evaluation(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Metrics over all sources, then by source; those over all rows in a group of their own."""
    for scored, group in ((record, "validation"), (record.get("whole") or {}, "validation_all_rows")):
        for name, value in metrics_of(scored.get("all", {})).items():
            yield f"{group}/{name}", value
        for source, score in scored.get("sources", {}).items():
            for name, value in metrics_of(score).items():
                yield f"{group}/{name}/{source}", value
