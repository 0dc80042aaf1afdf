"""The training length: whole rows, and a last step that may be smaller than the others.

`train.tokens` or `train.epochs` is rounded up to whole rows of `train.sequence` tokens. Where the rows do not divide
into steps, the last step takes the rest; its loss is the mean over its own targets. The size of a step is a function of
the tokens consumed before it.

A run may be shortened while it trains (`train.seconds`). From there on the clock of the schedule runs faster by a
constant factor, so that the rest of the schedule fits into the rest of the run: the learning rate does not jump, and it
falls to the same end value.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self

from hornbook.errors import UsageError
from hornbook.optim.config.average_config import AverageConfig, NoAverage
from hornbook.optim.config.batch_schedule import Batches
from hornbook.optim.config.schedule_base import Axis, ScheduleConfig
from hornbook.settings.training import TrainConfig


@dataclass(frozen=True)
class Cut:
    """A point at which a run was shortened."""

    at: int
    """Tokens consumed at the step boundary where it takes effect."""
    length: int
    """New length of the whole run in tokens."""


@dataclass(frozen=True)
class TrainingLength:
    """Length of a run."""

    planned: int
    """Tokens of the whole run as the recipe asks: the length of its schedules."""
    batches: Batches
    """Tokens of every step but the last."""
    sequence: int
    """Tokens of a row."""
    cuts: tuple[Cut, ...] = ()
    """Where it was shortened: `at` ascending, `length` descending."""

    @property
    def tokens(self) -> int:
        """Tokens of the whole run."""
        return self.cuts[-1].length if self.cuts else self.planned

    def cut(self, cuts: Iterable[Cut]) -> Self:
        """The same run with further cuts, in the order in which they were decided.

        A cut replaces earlier decisions at the same or a later position: those of an attempt that had gone further.
        """
        kept = list(self.cuts)
        for cut in cuts:
            kept = [*(old for old in kept if old.at < cut.at), cut]
        return replace(self, cuts=tuple(kept))

    def schedule_clock(self, consumed: int) -> float:
        """Position in the schedule of `planned` tokens of the step that begins after `consumed` tokens.

        It is `consumed` up to the first cut, continuous, linear between cuts, and `planned` at the end of the run.
        """
        passed = [cut for cut in self.cuts if cut.at <= consumed]
        if not passed:
            return consumed
        clock, start, rate = 0.0, 0, 1.0
        for cut in passed:
            clock += (cut.at - start) * rate
            start, rate = cut.at, (self.planned - clock) / (cut.length - cut.at)
        return clock + (consumed - start) * rate

    def end_within(self, consumed: int, tokens: float) -> int:
        """Length of a run that ends with a whole step, after one at least and at most `tokens` after `consumed`."""
        end = consumed + self.batches.at(consumed)
        for first, size, steps in self.batches.runs(consumed):
            count = min(steps, (consumed + tokens - first) // size)
            end = max(end, first + int(count) * size)
            if count < steps:
                break
        return min(end, self.tokens)

    def rows(self, consumed: int) -> int:
        """Rows of the step that begins after `consumed` tokens."""
        return math.ceil(min(self.batches.at(consumed), self.tokens - consumed) / self.sequence)

    def steps_from(self, consumed: int) -> int:
        """Steps left after `consumed` tokens."""
        return self.batches.steps(consumed, self.tokens)

    def describe(self) -> str:
        """Number and size of steps, for people."""
        steps = self.steps_from(0)
        start = int(self.batches.tokens_of(steps - 1))
        rest = self.tokens - start
        last = f", the last of {rest:,}" if rest < self.batches.at(start) else ""
        return f"{steps:,} steps of {self.batches.describe()}{last}: {self.tokens:,} tokens"


def training_length(train: TrainConfig, epoch_tokens: Callable[[float], int]) -> TrainingLength:
    """The length that `train` asks for; `epoch_tokens` gives the tokens of a number of passes over the data."""
    if train.tokens is not None:
        wanted = train.tokens
    elif train.epochs is not None:
        wanted = epoch_tokens(train.epochs)
    else:
        raise UsageError("how long to train is not set: give --train.tokens or --train.epochs")
    rows = math.ceil(wanted / train.sequence)
    return TrainingLength(rows * train.sequence, train.ramp.batches(train.batch_tokens), train.sequence)


def sets_schedule(key: str) -> bool:
    """Whether a setting decides where a schedule's points lie in the run."""
    keys = ("optim.schedule", "train.tokens", "train.epochs", "train.batch_tokens", "train.ramp", "train.average")
    return key.startswith(keys)


def check_schedule(schedule: ScheduleConfig, average: AverageConfig, length: TrainingLength) -> None:
    """Raise UsageError naming the settings of a schedule, or of an average of weights, that do not fit the run."""
    axis = Axis(length.planned, length.batches)
    lines = [f"  optim.schedule.{key}: {text}" for key, text in schedule.problems(axis)]
    if not isinstance(average, NoAverage):
        lines += [f"  train.average.{key}: {text}" for key, text in average.problems(axis)]
    if lines:
        raise UsageError("\n".join(["these settings do not fit the length of the run:", *lines]))
