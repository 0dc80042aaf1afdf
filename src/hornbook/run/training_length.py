"""How long a run is: whole rows, and a last step that may be smaller than the others.

`train.tokens` or `train.epochs` is rounded up to whole rows of `train.sequence` tokens. Where the rows do not
divide into steps, the last step takes the rest; its loss is the mean over its own targets. How large a step is, is a
function of the tokens consumed before it.

A run may be shortened on its way (`train.seconds`). From there on the schedule is read at a clock that runs faster, by
one factor, so that what is left of the schedule fits into what is left of the run: the learning rate does not jump, and
falls to the end value that it would have had.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self

from hornbook.errors import UsageError
from hornbook.optim.config.batch_schedule import Batches
from hornbook.run.config import TrainConfig


@dataclass(frozen=True)
class Cut:
    """A run becomes shorter."""

    at: int
    """Tokens consumed at the step boundary from which on it holds."""
    length: int
    """Tokens of the whole run from then on."""


@dataclass(frozen=True)
class Horizon:
    """Length of a run."""

    planned: int
    """Tokens of the whole run as it was asked for: the length that schedules are functions of."""
    batches: Batches
    """Tokens of every step but the last."""
    sequence: int
    """Tokens of a row."""
    cuts: tuple[Cut, ...] = ()
    """Where it was shortened, at rising tokens and to falling lengths."""

    @property
    def tokens(self) -> int:
        """Tokens of the whole run."""
        return self.cuts[-1].length if self.cuts else self.planned

    def cut(self, cuts: Iterable[Cut]) -> Self:
        """The same run shortened as well at `cuts`, in the order in which they were decided.

        A cut that comes before earlier ones, of an attempt that had gone further, takes their place.
        """
        kept = list(self.cuts)
        for cut in cuts:
            kept = [*(old for old in kept if old.at < cut.at), cut]
        return replace(self, cuts=tuple(kept))

    def schedule_clock(self, consumed: int) -> float:
        """Where in the schedule of a run of `planned` tokens the step stands that begins after `consumed` tokens.

        That is `consumed` before the first cut. Each cut stretches the clock behind it: continuous, and `planned` at
        the end of the shortened run.
        """
        passed = [cut for cut in self.cuts if cut.at <= consumed]
        if not passed:
            return consumed
        clock, begin, rate = 0.0, 0, 1.0
        for cut in passed:
            clock += (cut.at - begin) * rate
            begin, rate = cut.at, (self.planned - clock) / (cut.length - cut.at)
        return clock + (consumed - begin) * rate

    def end_within(self, consumed: int, tokens: float) -> int:
        """Length of this run if it took whole steps only, and at most `tokens` after `consumed`; one step at least."""
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
        """Steps and tokens, and what becomes of the rest."""
        steps = self.steps_from(0)
        begin = int(self.batches.tokens_of(steps - 1))
        rest = self.tokens - begin
        last = f", the last of {rest:,}" if rest < self.batches.at(begin) else ""
        return f"{steps:,} steps of {self.batches.describe()}{last}: {self.tokens:,} tokens"


def horizon(train: TrainConfig, epoch_tokens: Callable[[float], int]) -> Horizon:
    """The length `train` asks for; `epoch_tokens` gives the tokens of a number of passes over the data."""
    if train.tokens is not None:
        wanted = train.tokens
    elif train.epochs is not None:
        wanted = epoch_tokens(train.epochs)
    else:
        raise UsageError("how long to train is not set: give --train.tokens or --train.epochs")
    rows = math.ceil(wanted / train.sequence)
    return Horizon(rows * train.sequence, train.ramp.batches(train.batch_tokens), train.sequence)
