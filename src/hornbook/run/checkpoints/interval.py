"""Steps between saves with `checkpoint.every = "auto"`: the interval that loses least time to saves and to failures.

Saves hold the loop for `stall` seconds each; a failure, every MTBF hours, loses half an interval. The sum is least at
T = sqrt(2 stall MTBF) (Young 1974; Daly 2006 gives higher orders). Stall and step time are rank 0's, measured at saves;
the MTBF follows from `guard.mtbf` and the failures of the run so far (`hornbook.run.ledger.uptime`). What
follows from all that is no function of the recipe, so the ledger has each new interval before it counts.
"""

import math
import time

from hornbook.parallel.world import World
from hornbook.run.checkpoints.state import State
from hornbook.run.ledger.ledger import Interval, Ledger
from hornbook.run.ledger.uptime import expected_mtbf

FIRST_STEPS = 20
"""Steps to the first save, at which there is something to measure."""
CHANGE = 0.25
"""Relative difference from which on another interval is worth a change."""


def best_interval(stall: float, seconds: float, hours: float) -> int:
    """Steps between saves, each of which holds the loop for `stall` seconds.

    `seconds`: time of a step; `hours`: mean time between failures. Young 1974: sqrt(2 stall mtbf) seconds.
    """
    return max(round(math.sqrt(2 * stall * 3600 * hours) / seconds), 1)


def is_due(step: int, intervals: list[Interval]) -> bool:
    """Whether a save belongs to a step; intervals in the order of their decision."""
    since, every = next(((each.step, each.every) for each in reversed(intervals) if each.step < step), (0, FIRST_STEPS))
    return (step - since) % every == 0


class SaveInterval:
    """The intervals of one run. Every rank makes the same calls in the same order."""

    def __init__(self, hours: float, known: list[Interval], world: World, ledger: Ledger) -> None:
        """`hours`: between failures, as expected before the run; `known`: the intervals that the ledger has."""
        self._hours, self._world, self._ledger = hours, world, ledger
        self._intervals = list(known)
        self._saved: tuple[int, float] | None = None
        """Step of the last save, and when it had begun to be written."""

    def is_due(self, step: int) -> bool:
        """Whether a save belongs to this step."""
        return is_due(step, self._intervals)

    def measure(self, state: State, begun: float) -> None:
        """Take note of a save that held the loop from `begun` (of the monotonic clock) until now; choose the interval.

        A step of which the ledger knows the choice, since the run was here before, keeps it. Nothing is known of the
        time of a step at the first save, nor at the first after the run went back.
        """
        now, before = time.monotonic(), self._saved
        self._saved = state.step, now
        known = any(each.step == state.step for each in self._intervals)
        if known or before is None or before[0] >= state.step:
            return
        stall, seconds = now - begun, (begun - before[1]) / (state.step - before[0])
        uptime = self._ledger.now.uptime
        mtbf = expected_mtbf(self._hours, uptime.hours(time.time()), uptime.failures)
        every = self._world.broadcast(best_interval(stall, seconds, mtbf))
        present = self._intervals[-1].every if self._intervals else FIRST_STEPS
        if abs(every - present) > CHANGE * present:
            fields = {"every": every, "before": present, "stall": stall, "step_seconds": seconds}
            self._ledger.note("save_interval", state, **fields, mtbf=mtbf, failures=uptime.failures)
            self._intervals.append(Interval(state.step, every))
