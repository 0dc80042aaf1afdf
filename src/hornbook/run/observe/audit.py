"""Computes gradients of microbatches again: on the same rank, whose bits must be the same, and on its neighbour.

An answer that the same rank does not give twice is a fault that passed; one that its neighbour does not give is a fault
that stays, of one of the two; an answer that both give is real. (Megatron-LM's re-run logic compares in this way too;
here all is compared to the bit, since sums of a rank have one order.) Only where every rank holds the whole model, and
no experts count what passes through them: elsewhere gradients of one rank alone do not exist.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from hornbook.data.batch import Batch, GlobalBatch
from hornbook.errors import HardwareError
from hornbook.model.mlp.experts import Experts
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.world import DATA
from hornbook.run.job import Job
from hornbook.run.observe.replicas import combined, digests
from hornbook.run.start.micro_batch import free_cached_memory, is_out_of_memory
from hornbook.run.state import State
from hornbook.run.step_report import is_due

Kind = Literal["transient", "persistent", "real"]


class FaultyRankError(RuntimeError):
    """A rank gives other bits than its neighbour for the same work, every time."""


@dataclass(frozen=True)
class Replay:
    """What computing again has shown."""

    kind: Kind
    """transient: the fault has passed; persistent: it stays; real: there is none, the numbers are what they are."""
    ranks: list[int]
    """Ranks to suspect; of a whole step that came out otherwise nobody knows whose fault it was: all."""


def microbatch_gradients(state: State, batch: Batch) -> list[Tensor]:
    """Gradients of one microbatch of the next step, of this rank alone; changes nothing."""
    return state.engine.gradients_alone(batch, (state.seed, state.step))


def can_replay(state: State, parallel: ParallelConfig) -> bool:
    """Whether gradients of one rank alone exist: it holds the whole model, which has no experts."""
    world = state.engine.world
    whole = world.size == world.data_size and parallel.shard in ("none", "optimizer")
    return whole and not any(isinstance(each, Experts) for each in state.engine.model.modules())


def judge(found: Sequence[tuple[int, int, int]]) -> Replay:
    """Of each rank (digest, the same again, digest of the work of the rank before it): the verdict."""
    size = len(found)
    unsteady = [rank for rank, (first, again, _) in enumerate(found) if first != again]
    if unsteady:
        return Replay("transient", unsteady)
    after = [(rank + 1) % size for rank in range(size)]
    apart = [rank for rank in range(size) if found[rank][0] != found[after[rank]][2]]
    if not apart:
        return Replay("real", [])
    suspects = {each for rank in apart for each in (rank, after[rank])}
    agreed = {each for rank in range(size) if rank not in apart for each in (rank, after[rank])}
    return Replay("persistent", sorted(suspects - agreed or suspects))


class Audit:
    """Computes microbatches again. Every rank makes the same calls in the same order."""

    def __init__(self, job: Job, state: State, say: Callable[[str], None]) -> None:
        recipe = job.recipe
        self.possible = can_replay(state, recipe.parallel)
        """Whether there is anything to compute again."""
        self._every = recipe.guard.audit_every if self.possible else 0
        self._state, self._world, self._ledger, self._say = state, state.engine.world, job.ledger, say
        if recipe.guard.audit_every and not self.possible:
            say("warning: guard.audit_every: ranks that hold a part of the model, or experts, are not audited")

    def audit_if_due(self, batch: GlobalBatch) -> None:
        """Before the update of a step that is due: compute its first microbatch again. Raises FaultyRankError."""
        if not is_due(self._state.step + 1, self._every):
            return
        found = self.replay(batch.batches[0])
        if found is None:
            self._every = 0  # the next would run out as well
        else:
            self.conclude(found)

    def replay(self, batch: Batch) -> Replay | None:
        """Compute a microbatch of this rank twice, and that of the rank before it once; every rank calls it.

        None where a rank has no memory for it: these gradients stand beside those of the step.
        """
        world, size = self._world, self._world.data_size
        theirs = world.all_gather_values(batch, DATA)[(world.data_rank - 1) % size]
        found = world.all_gather_values(self._digests(batch, batch, theirs), DATA)
        without = [rank for rank, own in enumerate(found) if own is None]
        if not without:
            return judge([own for own in found if own is not None])
        told = f"memory ran out on rank {', '.join(map(str, without))}: nothing is computed again to be compared"
        self._ledger.note("audit", self._state, found="no memory", ranks=without, text=told)
        self._say(f"warning: {told}")
        return None

    def _digests(self, *batches: Batch) -> tuple[int, int, int] | None:
        """Of the gradients of three microbatches; None where memory runs out. Nothing in it waits for other ranks."""
        try:
            one, two, three = (combined(digests(microbatch_gradients(self._state, each))) for each in batches)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
        else:
            return one, two, three
        free_cached_memory()  # what the failed pass held is free: its frames ended with `except`
        return None

    def conclude(self, found: Replay, **evidence: Any) -> None:
        """Record what computing again has shown, unless all is well. Raises FaultyRankError, or
        HardwareError without other ranks, where a fault stays."""
        if found.kind == "real":
            return
        text = f"step {self._state.step + 1} computed again has other bits on rank {', '.join(map(str, found.ranks))}"
        told = f"{text}: a {found.kind} fault"
        self._ledger.note("audit", self._state, found=found.kind, ranks=found.ranks, **evidence, text=told)
        self._say(f"warning: {told}")
        if found.kind == "persistent" and self._world.size == 1:
            raise HardwareError(
                f"{text}, every time: check the machine (`hornbook doctor --deep`), then resume the run"
            )
        if found.kind == "persistent":
            raise FaultyRankError(f"{text}, every time")
