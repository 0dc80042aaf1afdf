"""What happens when a step goes wrong: a pure judgement of recorded values.

The update itself is guarded on the device (`Engine.step`); here refusals are counted, and the run is stopped
when skipping does not help.
"""

from dataclasses import dataclass

from hornbook.errors import DivergedError
from hornbook.run.config import GuardConfig


@dataclass(frozen=True)
class Verdict:
    """Judgement of one step."""

    skipped: bool
    """The update was refused: loss or gradient was not finite."""
    in_a_row: int
    """Refused updates up to and with this step, without a good one between."""
    exhausted: bool
    """More were refused in a row than the configuration allows."""


class Guard:
    """Judges steps; its memory lives in the state, so that it is saved and rewound with it."""

    def __init__(self, config: GuardConfig) -> None:
        self._config = config

    def judge(self, applied: bool, skips_before: int, *, expected: bool = False) -> Verdict:
        """Judge a step by whether its update was applied; `skips_before`: refusals in a row before it.

        expected: a refusal is how the fp16 scale finds its size, and does not count.
        """
        in_a_row = 0 if applied else skips_before + (not expected)
        return Verdict(not applied, in_a_row, in_a_row > self._config.max_skips)

    def error(self, verdict: Verdict, step: int) -> DivergedError:
        """Why the run stops."""
        return DivergedError(
            f"diverged: {verdict.in_a_row} steps in a row, up to step {step}, had a loss or gradient that is not "
            f"finite, and guard.max_skips is {self._config.max_skips}. The last checkpoint holds none of them: resume "
            "with a lower --optim.lr or a smaller --optim.clip, and look at the data of these steps in events.jsonl"
        )
