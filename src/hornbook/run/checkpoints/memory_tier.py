"""When ranks copy their state into memory, when they go on from a copy, and when they stop to trust copies."""

import math
from collections.abc import Callable
from typing import Any

from hornbook.errors import IntegrityError
from hornbook.model.config.surgery_config import adapter_of
from hornbook.parallel.world import AXES, World
from hornbook.run.checkpoints.memory_copies import RankCopies
from hornbook.run.checkpoints.state import State
from hornbook.run.ledger.ledger import Ledger
from hornbook.run.ledger.step_report import Step, is_due
from hornbook.run.machine.process_memory import available_bytes

ON_TRIAL = 20
"""Steps after a start from a copy for which a loss or gradient that is not finite is blamed on the copy."""
HEADROOM = 1.25
"""Free memory that the copies of all ranks of a machine ask for, as a multiple of their size."""


class UntrustedCopyError(RuntimeError):
    """Training is not sound since it went on from a copy in memory: start again from a checkpoint."""


class MemoryTier:
    """The copies of this rank. Every rank makes the same calls in the same order, and comes to the same verdicts."""

    def __init__(
        self, copies: RankCopies | None, every: int, world: World, ledger: Ledger, say: Callable[[str], None]
    ) -> None:
        """`copies`: None where nothing outlives this process; `every`: steps between two copies, 0: none."""
        self._copies, self._every, self._world = copies, every, world
        self._ledger, self._say = ledger, say
        if every and copies is None:
            say(
                "warning: checkpoint.memory_every: copies in memory are of several ranks that hornbook starts itself "
                "on one machine: none are made"
            )
        self._has_looked = False
        """Whether this attempt has asked for the memory of its copies."""
        self._start: int | None = None
        """Step of the copy that this attempt went on from."""
        self._scaled = False
        """Whether gradient norms that are not finite are normal: the fp16 scale grows until one is not."""

    def restore(self, state: State, on_disk: int) -> bool:
        """Read the newest copy that every rank has, unless it is older than step `on_disk`; whether it was read.

        Copies that are not used are dropped: from an older state on, their steps may go another way.
        """
        self._start, self._scaled = None, state.engine.scaler is not None
        if self._copies is None:
            return False
        offers = self._world.all_gather_values((self._copies.steps, on_disk), AXES)
        step = max(set[int].intersection(*(set(steps) for steps, _ in offers)), default=-1)
        if step >= max(offers[0][1], 0) and self._read(state, step):
            self._start = step
            return True
        self._copies.forget()
        return False

    def _read(self, state: State, step: int) -> bool:
        """Read the copy of a step; if any rank cannot, none uses it."""
        assert self._copies is not None
        problem, counters = "", dict[str, Any]()
        state.follow_saved(step)
        try:
            counters = self._copies.read(step, state.tensors())
        except IntegrityError as error:
            problem = f"rank {self._world.rank}: {error}"
        problems = [each for each in self._world.all_gather_values(problem, AXES) if each]
        if problems:
            self._end_trust(state, "; ".join(problems))
            return False
        state.set_counters(counters)
        return True

    def is_due(self, state: State) -> bool:
        """Whether the state of this step is to be copied."""
        return self._copies is not None and is_due(state.step, self._every) and self._copies.trusted

    def copy_if_due(self, state: State) -> None:
        """Copy the state, if this is the step for it."""
        if not self.is_due(state) or self._copies is None:
            return
        if not self._has_looked and not self._has_room(state):
            return
        self._has_looked = True
        self._copies.write(state.step, state.counters(), state.tensors())

    def _has_room(self, state: State) -> bool:
        """Whether every machine has memory for the copies of its ranks; adapters have no copies.

        Every rank asks at its first copy, even one that has memory from before: after a death within a copy another
        rank may have none.
        """
        assert self._copies is not None
        if adapter_of(state.spec.surgery) is not None:
            why = "checkpoint.memory_every: runs that train adapters have no copies in memory"
        else:
            missing = self._copies.missing_bytes(state.tensors())
            needed = int(sum(self._world.all_gather_values(missing, AXES)) * HEADROOM)
            free = min(self._world.all_gather_values(available_bytes(), AXES))
            why = (
                f"checkpoint.memory_every: copies need {needed:,} bytes of memory, and {free:,} are free: none are made"
            )
            if free >= needed:
                return True
        self._every = 0
        self._ledger.note("warning", state, text=why)
        self._say(f"warning: {why}")
        return False

    def judge(self, step: Step) -> None:
        """Blame a step that is not finite on the copy it came from, if it came from one; raises UntrustedCopyError.

        The step may well be at fault itself: then it is not finite again from the checkpoint, and is skipped there.
        """
        finite = math.isfinite(step.loss) and (self._scaled or math.isfinite(step.grad_norm))
        if finite or self._start is None:
            return
        if step.step <= self._start + ON_TRIAL:
            why = f"step {step.step} is not finite, {step.step - self._start} after a start from the copy in memory"
            self._end_trust(step, why)
            raise UntrustedCopyError(f"{why}: the run goes on from the newest checkpoint")

    def forget(self) -> None:
        """Drop all copies: the state is about to come from elsewhere."""
        if self._copies is not None:
            self._copies.forget()

    def _end_trust(self, at: State | Step, why: str) -> None:
        assert self._copies is not None
        self._copies.distrust()
        self._ledger.note("tier_distrusted", at, tier="memory", text=why)
        self._say(f"copies in memory are not used any more: {why}")
