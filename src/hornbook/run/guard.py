"""What happens when a step goes wrong: the host's judgement of recorded values.

The update itself is guarded on the device (`Engine.step`); here it is counted, and the run is stopped when
skipping does not help.
"""

from dataclasses import dataclass

from hornbook.errors import DivergedError
from hornbook.run.config import GuardConfig


@dataclass(frozen=True)
class Verdict:
    """Judgement of one step."""

    skipped: bool
    """The update was refused."""
    in_a_row: int
    """Refused updates up to and with this step, without a good one between."""
    exhausted: bool
    """More were refused in a row than the configuration allows."""


class Guard:
    """Counts refused steps in a row."""

    def __init__(self, config: GuardConfig, in_a_row: int = 0) -> None:
        self._config = config
        self.in_a_row = in_a_row

    def judge(self, applied: bool) -> Verdict:
        """Judge a step by whether its update was applied."""
        self.in_a_row = 0 if applied else self.in_a_row + 1
        return Verdict(not applied, self.in_a_row, self.in_a_row > self._config.max_skips)

    def error(self, step: int) -> DivergedError:
        """Why the run stops."""
        return DivergedError(
            f"{self.in_a_row} steps in a row up to step {step} had a loss or gradient that is not finite, and "
            f"guard.max_skips is {self._config.max_skips}: nothing of them was saved. The last checkpoint is good; "
            "resume with a lower --optim.lr, or --train.precision fp32, and look at the data of these steps"
        )
