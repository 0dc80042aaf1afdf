"""What a run's records say along its steps: curves and events, ready to be drawn. Only the run directory is read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hornbook.errors import IntegrityError, UsageError
from hornbook.files.run_directory import RunDir
from hornbook.files.run_status import coverage, evaluations, events, figures_of, steps_that_count
from hornbook.studio.series import Numbers, find_spikes, moving_median

Position = Literal["step", "tokens"]
"""What curves are drawn against."""
TRAINING = {
    "loss": "loss",
    "gradient_norm": "gradient norm",
    "lr": "learning rate",
    "tokens_per_second": "tokens/s",
}
"""Key in metrics.jsonl -> the figure it is drawn as."""
_EVENTS = {
    "resume": "resumed",
    "restart": "ranks restarted",
    "save": "saved",
    "skip": "step refused: not finite",
    "shorten": "shortened",
    "warning": "warning",
    "stop": "stopped",
    "fail": "failed",
}
"""Kind of a record in the ledger -> how it is called. A rollback is the `resume` that follows a `restart` or `fail`."""
SPIKE = "loss spike"
EVENT_NAMES = (SPIKE, *_EVENTS.values())
_MEDIAN_SHARE, _LEAST_MEDIAN = 50, 5
"""A median is over one in so many of all steps, and over so many at least."""


@dataclass(frozen=True)
class Curve:
    """One line of a figure; `y` is NaN where nothing was recorded."""

    figure: str
    name: str
    """What it is of: `every step`, `median of 20 steps`, the source of held-out text."""
    x: Numbers
    y: Numbers
    kind: Literal["steps", "median", "held out", "whole"]
    """Every step, their moving median, rows scored along the run, all rows scored at its end."""


@dataclass(frozen=True)
class Event:
    """Something that happened to the run."""

    x: float
    name: str
    text: str


@dataclass(frozen=True)
class History:
    """All that is drawn of a run."""

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
    """Steps of each median of a run, an odd number; 0 for a run that is too short for medians."""
    width = steps // _MEDIAN_SHARE | 1
    return width if width >= _LEAST_MEDIAN else 0


def _numbers(records: Sequence[Mapping[str, Any]], key: str) -> Numbers:
    """One figure of some records; NaN where a record has none."""
    values = [record.get(key) for record in records]
    return np.array([np.nan if value is None else float(value) for value in values])


def _training(steps: Sequence[Mapping[str, Any]], x: Numbers) -> Iterator[Curve]:
    for key, figure in TRAINING.items():
        values = _numbers(steps, key)
        if not np.isfinite(values).any():
            continue
        yield Curve(figure, "every step", x, values, "steps")
        if key != "lr" and (width := median_width(len(values))):
            places, medians = moving_median(values, width)
            yield Curve(figure, f"median of {width:,} steps", x[places], medians, "median")


def _current(scored: Sequence[dict[str, Any]], steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The evaluations of the steps that count; a file of steps that were rolled back may still lie there."""
    attempts = {step["step"]: step["attempt"] for step in steps}
    first = min(attempts, default=0)  # what a run starts from is scored before its first step
    return [each for each in scored if each["step"] < first or each["attempt"] >= attempts.get(each["step"], np.inf)]


def _held_out(scored: Sequence[Mapping[str, Any]], position: Position) -> Iterator[Curve]:
    """A curve for each figure, source and choice of rows: figures of other rows are not joined."""
    points: dict[tuple[str, str, str, str], list[tuple[float, float]]] = {}
    for each in scored:
        for record, kind in ((each, "held out"), (each.get("whole") or {}, "whole")):
            for figure, source, value in _scores(record) if record else ():
                key = (figure, source, kind, str(record.get("rows")))
                points.setdefault(key, []).append((float(each[position]), value))
    for (figure, source, kind, _), pairs in points.items():
        x, y = (np.array(values) for values in zip(*pairs, strict=True))
        yield Curve(figure, source, x, y, "whole" if kind == "whole" else "held out")


def _scores(record: Mapping[str, Any]) -> Iterator[tuple[str, str, float]]:
    """(figure, of what, value). The loss stands beside that of training, over all sources, with the rows it is of."""
    sources, together = record["sources"], record["all"]
    on = coverage(together)
    if np.isfinite(together["loss"]):
        yield "loss", f"held out, {on}" if on else "held out", float(together["loss"])
    for source, score in {**sources, **({"all sources": together} if len(sources) > 1 else {})}.items():
        for figure, value in figures_of(score).items():
            if figure != "loss" and np.isfinite(value):
                yield figure.replace("_", " "), source, float(value)


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
