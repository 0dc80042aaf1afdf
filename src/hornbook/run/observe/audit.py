"""Computes gradients of microbatches again: on the same rank, whose bits must be the same, and on its neighbour.

An answer that the same rank does not give twice is a fault that passed; if audits name that rank alone again, it stays.
One that its neighbour does not give is a fault that stays, of one of the two; an answer that both give is real.
(Megatron-LM's re-run logic compares in this way too; here all is compared to the bit, since sums of a rank have one
order.) Only where every rank holds the whole model, and no experts count what passes through them: elsewhere gradients
of one rank alone do not exist.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import Tensor

from hornbook.data.batch import Batch, GlobalBatch
from hornbook.errors import HardwareError
from hornbook.model.mlp.experts import Experts
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.world import DATA
from hornbook.run.checkpoints.state import State
from hornbook.run.job.job import Job
from hornbook.run.job.micro_batch import free_cached_memory, is_out_of_memory
from hornbook.run.ledger.decisions import is_suspect
from hornbook.run.ledger.step_report import is_due
from hornbook.run.observe.replicas import combined, digests

Kind = Literal["transient", "persistent", "real"]


class FaultyRankError(RuntimeError):
    """A rank gives other bits than its neighbour for the same work every time, or than itself again and again."""


@dataclass(frozen=True)
class Replay:
    """What computing again has shown."""

    kind: Kind
    """transient: the fault has passed; persistent: it stays; real: there is none, the numbers are what they are."""
    ranks: list[int]
    """Ranks to suspect; of a whole step that came out otherwise nobody knows whose fault it was: all."""
    unsteady: list[int] = field(default_factory=list)
    """Beside a fault that stays: other ranks, with a fault that has passed."""
    accuses: bool = True
    """Whether a fault that has passed counts against a rank that is named alone."""


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
    unsteady = [rank for rank, (first, again, _) in enumerate(found) if first != again]
    pairs = [(rank, (rank + 1) % len(found)) for rank in range(len(found))]
    same = [(rank, after) for rank, after in pairs if found[after][2] in found[rank][:2]]
    apart = [pair for pair in pairs if pair not in same and not set(pair) & set(unsteady)]
    if apart:
        suspects, agreed = ({each for pair in some for each in pair} for some in (apart, same))
        return Replay("persistent", sorted(suspects - agreed or suspects), unsteady)
    return Replay("transient", unsteady) if unsteady else Replay("real", [])


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
            verdict = judge([own for own in found if own is not None])
            return replace(verdict, accuses=size > 1 or world.device.type == "cpu")  # a GPU may add in any order
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
        """Record what computing again has shown, unless all is well.

        A fault that has passed stays after all, where its rank was named alone before. Raises FaultyRankError, or
        HardwareError without other ranks, where a fault stays.
        """
        if found.kind == "real":
            return
        if found.unsteady:
            self._note("transient", found.unsteady, evidence)
        passed = found.kind == "transient"
        again = passed and found.accuses and is_suspect(self._ledger.now.named, found.ranks)
        if passed and not again:
            self._note("transient", found.ranks, evidence if found.accuses else {**evidence, "accuses": False})
            return
        text = (
            f"{self._note('persistent', found.ranks, evidence)}, {'not for the first time' if again else 'every time'}"
        )
        if self._world.size == 1:
            raise HardwareError(f"{text}: check the machine (`hornbook doctor --deep`), then resume the run")
        raise FaultyRankError(text)

    def _note(self, kind: Kind, ranks: list[int], evidence: Mapping[str, Any]) -> str:
        """Record and say what was found; returns where."""
        text = f"step {self._state.step + 1} computed again has other bits on rank {', '.join(map(str, ranks))}"
        told = f"{text}: a {kind} fault"
        self._ledger.note("audit", self._state, found=kind, ranks=ranks, **evidence, text=told)
        self._say(f"warning: {told}")
        return text
