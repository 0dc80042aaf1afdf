"""Ends a run by its validation losses (`eval.stop`): a decision of rank 0 that the ledger has before it takes effect.

The run is not cut off: it is shortened (`TrainingLength.cut`), as by `train.seconds`, so the rest of the schedule
happens in what is left, and the loss gets the fall that lowering the learning rate brings.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hornbook.evals.config import Converged, Patience
from hornbook.files.run_status import evaluations, events, objective_of, steps_that_count
from hornbook.optim.config.schedule_base import Axis, ScheduleConfig
from hornbook.run.doctor.convergence import CONSTANT, constant_part, convergence
from hornbook.run.doctor.curves import WINDOW, curves_of
from hornbook.run.doctor.run_report import evaluated_series
from hornbook.run.job.job import Job
from hornbook.run.ledger.step_report import Step
from hornbook.run.ledger.training_length import TrainingLength

_STOP = "eval.stop: "


@dataclass
class Losses:
    """Evaluations in order of their step."""

    step: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    loss: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    training: list[float] = field(default_factory=list)

    def add(self, step: int, tokens: int, loss: float, rate: float, training: float) -> None:
        """A further one; those of the same step and later ones are dropped, for the run went back."""
        keep = sum(each < step for each in self.step)
        for column, value in zip(vars(self).values(), (step, tokens, loss, rate, training), strict=True):
            column[keep:] = [value]


def why_stop(config: Patience | Converged, found: Losses) -> str:
    """The reason to end the run after the newest evaluation; "" to go on. A pure function of the losses."""
    if isinstance(config, Patience):
        return _patience(config, found.loss)
    verdicts = [_verdict(config, found, len(found.loss) - back) for back in range(config.evaluations)]
    stops = {"converged", "overfitting", "diverging"}
    if len(found.loss) < config.evaluations or verdicts[0] not in stops or len(set(verdicts)) > 1:
        return ""
    return f"{verdicts[0]} at {config.evaluations} evaluations in a row"


def _patience(config: Patience, losses: list[float]) -> str:
    best, since = float("inf"), 0
    for loss in losses:
        best, since = (loss, 0) if loss < best - config.gain else (best, since + 1)
    return f"no validation loss below {best:.4f} at {since} evaluations" if since >= config.evaluations else ""


def _verdict(config: Converged, found: Losses, count: int) -> str:
    """That of the first `count` evaluations; "" while the schedule lowers the rate, unless the loss rises."""
    columns = (found.tokens, found.loss, found.rate, found.training)
    tokens, loss, rate, training = (np.array(each[: max(count, 0)], dtype=float) for each in columns)
    verdict = convergence(tokens.astype(np.int64), loss, rate, training, config.gain).verdict
    return "" if verdict == "converged" and constant_part(rate)[1] < len(rate) else verdict


class EarlyStop:
    """A `LengthKeeper`; only rank 0's decides."""

    def __init__(self, config: Patience | Converged, schedule: ScheduleConfig, job: Job, step: int) -> None:
        """`step`: from which this attempt goes on."""
        self._config, self._schedule = config, schedule
        self._found, self._reason = Losses(), ""
        self._losses = deque[float](maxlen=WINDOW)
        self._new: Mapping[str, Any] | None = None
        if job.output.is_rank0:
            for row in evaluated_series(curves_of(steps_that_count(job.run), (), evaluations(job.run))):
                if row[0] <= step:
                    self._found.add(*row)
            self._reason = _decided(job)
            job.ledger.listeners.append(self.listen)

    def listen(self, record: Mapping[str, Any]) -> None:
        """Take an evaluation of the ledger."""
        if record["kind"] == "evaluation" and "all" in record and "loss" in record["all"]:
            self._new = record

    def tokens_in_time(self, step: Step, length: TrainingLength) -> int:
        """Length of the run: after an evaluation that says so, `rest` of what it has consumed from here on."""
        self._losses.append(step.loss)
        new, self._new = self._new, None
        if new is None or self._reason:
            return length.tokens
        self._found.add(step.step, step.tokens, objective_of(new["all"]), step.lr, float(np.nanmedian(self._losses)))
        axis = Axis(length.planned, length.batches)
        if step.tokens < axis.tokens(self._config.after) or not (reason := why_stop(self._config, self._found)):
            return length.tokens
        self._reason = reason
        rest = self._config.rest * step.tokens if self._falls(step, length) else 0.0
        return length.end_within(step.tokens, rest)

    def _falls(self, step: Step, length: TrainingLength) -> bool:
        """Whether the schedule ends at a lower rate than that of now, in a run that has not gone astray."""
        now = self._schedule(length.schedule_clock(step.tokens), length.planned, length.batches)
        end = self._schedule(length.planned - 1, length.planned, length.batches)
        return end < CONSTANT * now and not self._reason.startswith(("overfitting", "diverging"))

    def evidence(self, step: Step, length: TrainingLength) -> dict[str, Any]:  # noqa: ARG002
        """For the ledger."""
        return {"reason": f"{_STOP}{self._reason}"}


def _decided(job: Job) -> str:
    """The reason that an earlier attempt had, if its decision is in force: it is made once."""
    found = [str(each.get("reason", "")) for each in events(job.run) if each.get("kind") == "shorten"]
    return next((each for each in reversed(found) if each.startswith(_STOP)), "") if job.length.cuts else ""
