"""Curves and events of a run, read from the records in its directory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import coverage, evaluations, events, metrics_of, steps_that_count, task_metrics
from hornbook.studio.series import Numbers, find_spikes, moving_median

Position = Literal["step", "tokens"]
"""The horizontal axis."""
TRAINING = {
    "loss": "loss",
    "gradient_norm": "gradient norm",
    "lr": "learning rate",
    "tokens_per_second": "tokens/s",
}
"""Key in metrics.jsonl -> title of its panel."""
_EVENTS = {
    "resume": "resumed",
    "restart": "ranks restarted",
    "save": "saved",
    "skip": "step refused: not finite",
    "shorten": "shortened",
    "throughput": "throughput changed",
    "straggler": "a rank is slow",
    "intervention": "settings changed",
    "warning": "warning",
    "stop": "stopped",
    "fail": "failed",
}
"""Kind of a ledger record -> name of the event. A rollback is the `resume` after a `restart` or `fail`."""
SPIKE = "loss spike"
EVENT_NAMES = (SPIKE, *_EVENTS.values())
_MEDIAN_SHARE, _MIN_MEDIAN = 50, 5
"""The window of a median is a fiftieth of all steps, and at least five."""


@dataclass(frozen=True)
class Curve:
    """One line of a panel; `y` is NaN where nothing was recorded."""

    metric: str
    name: str
    """`every step`, `median of 20 steps`, or the source of held-out text."""
    x: Numbers
    y: Numbers
    kind: Literal["steps", "median", "held out", "whole"]
    """Values of all steps, their moving median, evaluations during the run, evaluations of all rows at its end."""


@dataclass(frozen=True)
class Event:
    """An event of the run at position `x`."""

    x: float
    name: str
    text: str


@dataclass(frozen=True)
class History:
    """What is drawn of one run."""

    name: str
    curves: list[Curve]
    events: list[Event]


def read_history(run: RunDir, position: Position) -> History:
    """Curves and events of a run against its steps or tokens.

    Raises UsageError where no step is recorded yet, IntegrityError or OSError where its records cannot be read.
    """
    try:
        steps = steps_that_count(run)
        if not steps:
            raise UsageError("no step is recorded yet")
        x = _numbers(steps, position)
        loss = _numbers(steps, "loss")
        curves = [*_training(steps, x), *_held_out(_current(evaluations(run), steps), position)]
        found = [*_spikes(steps, x, loss), *_ledger(events(run), position)]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        raise IntegrityError(f"its records are damaged ({error!r})") from error
    return History(run.name, curves, sorted(found, key=lambda event: event.x))


def median_width(steps: int) -> int:
    """Window of the medians of a run, an odd number of steps; 0 if the run is too short for medians."""
    width = steps // _MEDIAN_SHARE | 1
    return width if width >= _MIN_MEDIAN else 0


def _numbers(records: Sequence[Mapping[str, Any]], key: str) -> Numbers:
    """The values of a key in records; NaN where a record lacks it."""
    values = [record.get(key) for record in records]
    return np.array([np.nan if value is None else float(value) for value in values])


def _training(steps: Sequence[Mapping[str, Any]], x: Numbers) -> Iterator[Curve]:
    for key, metric in TRAINING.items():
        values = _numbers(steps, key)
        if not np.isfinite(values).any():
            continue
        yield Curve(metric, "every step", x, values, "steps")
        if key != "lr" and (width := median_width(len(values))):
            places, medians = moving_median(values, width)
            yield Curve(metric, f"median of {width:,} steps", x[places], medians, "median")


def _current(scored: Sequence[dict[str, Any]], steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of the current branch; files of steps that were rolled back may still be there."""
    attempts = {step["step"]: step["attempt"] for step in steps}
    first = min(attempts, default=0)  # what a run starts from is scored before its first step
    return [each for each in scored if each["step"] < first or each["attempt"] >= attempts.get(each["step"], np.inf)]


def _held_out(scored: Sequence[Mapping[str, Any]], position: Position) -> Iterator[Curve]:
    """A curve for each metric, source and set of rows; metrics of different rows are not joined."""
    points: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for each in scored:
        for record, kind in ((each, "held out"), (each.get("whole") or {}, "whole")):
            for metric, source, value in _scores(record) if record else ():
                key = (metric, source, kind, str(record.get("rows")))
                points.setdefault(key, []).append((float(each[position]), value))
    for (metric, source, kind, _), pairs in points.items():
        x, y = (np.array(values) for values in zip(*pairs, strict=True))
        yield Curve(metric, source, x, y, "whole" if kind == "whole" else "held out")


def _scores(record: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(metric, source, value). The loss over all sources goes into the panel of the training loss."""
    sources, together = record["sources"], record["all"]
    on = coverage(together)
    if np.isfinite(together["loss"]):
        yield "loss", f"held out, {on}" if on else "held out", float(together["loss"])
    for source, score in {**sources, **({"all sources": together} if len(sources) > 1 else {})}.items():
        for metric, value in metrics_of(score).items():
            if metric != "loss" and np.isfinite(value):
                yield metric.replace("_", " "), source, float(value)
    for task, metric, value in task_metrics(record):
        if np.isfinite(value):
            yield f"task {metric.replace('_', ' ')}", task, value


def _spikes(steps: Sequence[Mapping[str, Any]], x: Numbers, loss: Numbers) -> Iterator[Event]:
    for spike in find_spikes(loss):
        text = f"step {steps[spike.at]['step']:,}: loss {spike.before:.3f} to {spike.peak:.3f}"
        yield Event(float(x[spike.at]), SPIKE, text)


def _ledger(records: Sequence[Mapping[str, Any]], position: Position) -> Iterator[Event]:
    for record in records:
        if (name := _EVENTS.get(record["kind"])) is not None:
            details = [str(record[key]) for key in ("checkpoint", "reason", "text") if record.get(key)]
            text = ", ".join([f"step {record['step']:,}, attempt {record['attempt']}: {name}", *details])
            yield Event(float(record[position]), name, text)
