"""How long a run is: whole rows, and a last step that may be smaller than the others.

`train.tokens` or `train.epochs` is rounded up to whole rows of `train.sequence` tokens. Where the rows do not
divide into steps, the last step takes the rest; its loss is the mean over its own targets.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from hornbook.errors import UsageError
from hornbook.run.config import TrainConfig


@dataclass(frozen=True)
class Horizon:
    """Length of a run."""

    tokens: int
    """Tokens of the whole run."""
    batch_tokens: int
    """Tokens of every step but the last."""
    sequence: int
    """Tokens of a row."""

    def rows(self, consumed: int) -> int:
        """Rows of the step that begins after `consumed` tokens."""
        return math.ceil(min(self.batch_tokens, self.tokens - consumed) / self.sequence)

    def steps_from(self, consumed: int) -> int:
        """Steps left after `consumed` tokens."""
        return math.ceil(max(self.tokens - consumed, 0) / self.batch_tokens)

    def describe(self) -> str:
        """Steps and tokens, and what becomes of the rest."""
        steps, rest = self.steps_from(0), self.tokens % self.batch_tokens
        last = f", the last of {rest:,}" if rest else ""
        return f"{steps:,} steps of {self.batch_tokens:,} tokens{last}: {self.tokens:,} tokens"


def horizon(train: TrainConfig, epoch_tokens: Callable[[float], int]) -> Horizon:
    """The length `train` asks for; `epoch_tokens` gives the tokens of a number of passes over the data."""
    if train.tokens is not None:
        wanted = train.tokens
    elif train.epochs is not None:
        wanted = epoch_tokens(train.epochs)
    else:
        raise UsageError("how long to train is not set: give --train.tokens or --train.epochs")
    rows = math.ceil(wanted / train.sequence)
    return Horizon(rows * train.sequence, train.batch_tokens, train.sequence)
