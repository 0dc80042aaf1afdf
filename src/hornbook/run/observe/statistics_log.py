"""Writes the statistics of layers, RUN/statistics.jsonl, and warns of what comes before a divergence.

Attention logits, log Z and the size of updates grow for long before training diverges by them, so the run says when
they will be there; and gradients whose norm scatters more and more are told. Each is a line, and a record of the ledger
(`precursor`), once in an attempt; nothing is done about it.
"""

import contextlib
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from hornbook.errors import IntegrityError
from hornbook.files.journal import Appender, current_branch, read_records
from hornbook.run.checkpoints.state import State
from hornbook.run.doctor.curve_rules import RULES, Diagnosis, diagnosis
from hornbook.run.doctor.curves import Facts, curves_of
from hornbook.run.ledger.step_report import Step

PRECURSORS = ("attention_logits", "output_logits", "large_updates", "noisy_gradients")
STEPS = 1024
"""Newest steps that are judged."""
KEPT = 200
"""Newest measurements that are judged."""


class StatisticsLog:
    """Observer: a line for each measured step. Ranks other than 0 have no path, and write nothing."""

    def __init__(self, state: State, path: Path | None, facts: Facts, warn: Callable[[Diagnosis, Step], None]) -> None:
        """`warn` is called where a rule of `PRECURSORS` finds something."""
        self._state, self._path, self._facts, self._warn = state, path, facts, warn
        self._appender: Appender | None = None
        self._records = deque[dict[str, Any]](maxlen=KEPT)
        self._steps = deque[Step](maxlen=STEPS)
        self._told: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._appender is not None:
            self._appender.close()

    def __call__(self, step: Step) -> None:
        layers = self._state.layers
        if layers is None:
            return
        while self._steps and self._steps[-1].step >= step.step:
            self._steps.pop()  # the run went back
        self._steps.append(step)
        if not layers.is_due(step.step):
            return
        found = layers.measure(self._state.loader, self._state.micro_batch)
        if self._path is None:
            return
        if self._appender is None:
            with contextlib.suppress(IntegrityError):  # the doctor says so: a damaged record of the past ends no run
                self._records.extend(current_branch(read_records(self._path)))
            self._appender = Appender(self._path)
        while self._records and self._records[-1]["step"] >= step.step:
            self._records.pop()  # the run went back
        place = {"attempt": step.attempt, "step": step.step, "tokens": step.tokens, "lr": step.lr}
        record = place | found.record()
        self._appender.append(record)
        self._records.append(record)
        self._judge(step)

    def _judge(self, step: Step) -> None:
        curves = curves_of([_judged(each) for each in self._steps], [*self._records], (), self._facts)
        for name in PRECURSORS:
            if name not in self._told and (evidence := RULES[name](curves)):
                self._told.add(name)
                self._warn(diagnosis(name, evidence), step)


def _judged(step: Step) -> dict[str, Any]:
    """What rules read of a step, with the names of metrics.jsonl."""
    own = {"step": step.step, "tokens": step.tokens, "loss": step.loss, "gradient_norm": step.grad_norm}
    return own | {"lr": step.lr, "skipped": step.skipped}
