"""TensorBoard event files (`log.tensorboard`), as a tracker."""

import importlib
import importlib.util
import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

from hornbook.errors import UsageError
from hornbook.files.extras import install_command
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import evaluations, steps_that_count
from hornbook.run.observe.trackers.metrics import of_evaluation, of_step
from hornbook.settings.training import LogConfig

_FLUSH_SECONDS = 5
_QUEUE = 4096
_STRING = 7
"""DT_STRING of tensorboard.compat.proto.types_pb2."""


def require_tensorboard(config: LogConfig) -> None:
    """Raise UsageError with the remedy where the configuration asks for TensorBoard and it is not installed."""
    if config.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UsageError(f"log.tensorboard needs tensorboard, which is not installed: {install_command('track')}")


class EventFiles:
    """Writes RUN/tensorboard.

    Each attempt writes a file of its own, which begins with a mark that withdraws the steps it will repeat
    (`SessionLog.START`). The first file of a run that was trained without them begins with its past.
    """

    name = "TensorBoard"

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._event: Any = None
        self._summary: Any = None
        self._tensor: Any = None
        """The protobuf messages of event files."""
        self._writer: Any = None

    def step(self, record: Mapping[str, Any]) -> None:
        """Write the metrics of a step."""
        self._add(record, of_step(record), purge=record["step"])

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Write the metrics of an evaluation."""
        self._add(record, of_evaluation(record), purge=record["step"] + 1)

    def sample(self, record: Mapping[str, Any]) -> None:
        """Write a sample of text."""
        if self._writer is None:
            self._open(record["step"] + 1, record["step"])
        self._text(record, "sample", f"{record['prompt']}{record['text']}")

    def close(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()

    def abandon(self) -> None:
        """Nothing: its thread is a daemon."""

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
            self._tensor = importlib.import_module("tensorboard.compat.proto.tensor_pb2")
            module = importlib.import_module("tensorboard.summary.writer.event_file_writer")
        except Exception as error:  # any error of other packages, such as protobuf
            raise OSError(f"tensorboard cannot be imported: {error}") from error
        first = not any(self._run.tensorboard.glob("events.out.tfevents.*"))
        self._writer = module.EventFileWriter(str(self._run.tensorboard), _QUEUE, _FLUSH_SECONDS)
        if not first:
            log = self._event.SessionLog
            self._send({"step": purge, "time": time.time()}, session_log=log(status=log.START))
        if self._run.recipe.exists():
            self._text({"step": purge if not first else 0}, "recipe", self._run.recipe.read_text(encoding="utf-8"))
        if not first:
            return
        for record in steps_that_count(self._run):
            if record["step"] < purge:
                self._add(record, of_step(record), purge=purge)
        for record in evaluations(self._run):
            if record["step"] < before:
                self._add(record, of_evaluation(record), purge=purge)

    def _text(self, record: Mapping[str, Any], tag: str, text: str) -> None:
        """Write text for the page "Text", which reads Markdown: indented lines are shown as they are."""
        lines = "".join(f"    {line}\n" for line in text.splitlines())
        kind = self._summary.SummaryMetadata.PluginData(plugin_name="text")
        tensor = self._tensor.TensorProto(dtype=_STRING, string_val=[lines.encode()])
        metadata = self._summary.SummaryMetadata(plugin_data=kind)
        value = self._summary.Summary.Value(tag=f"{tag}/text_summary", metadata=metadata, tensor=tensor)
        self._send(record, summary=self._summary.Summary(value=[value]))

    def _send(self, record: Mapping[str, Any], **content: Any) -> None:
        when = record.get("time") or time.time()
        self._writer.add_event(self._event.Event(wall_time=when, step=record["step"], **content))
