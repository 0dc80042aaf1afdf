"""How long a run is: whole rows, and a last step that may be smaller than the others.

`train.tokens` or `train.epochs` is rounded up to whole rows of `train.sequence` tokens. Where the rows do not
divide into steps, the last step takes the rest; its loss is the mean over its own targets. How large a step is, is a
function of the tokens consumed before it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from hornbook.errors import UsageError
from hornbook.ramps import Batches
from hornbook.run.config import TrainConfig


@dataclass(frozen=True)
class Horizon:
    """Length of a run."""

    tokens: int
    """Tokens of the whole run."""
    batches: Batches
    """Tokens of every step but the last."""
    sequence: int
    """Tokens of a row."""

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
