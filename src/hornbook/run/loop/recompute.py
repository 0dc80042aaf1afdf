"""A step that would be refused is computed again first, from the same weights and data: silent corruption, or the data?

| results | verdict |
|---|---|
| the second is the first, and neighbours agree | the data: the step is refused |
| the second is the third, and the first is not | the first was wrong, and the step is made with what two agree on |
| the first is the third, and the second is not | the second was wrong, and the step is refused |
| three results, or a neighbour has another | a fault that stays: the machine is checked, and the ranks start again |

Neighbours compute each other's microbatches where ranks of one machine hold the whole model. Results are equal to the
bit on a CPU. Kernels of a GPU may add in any order, so there they agree within a hundredth, three that are all refused
are the data, and neighbours are not asked. A rank is named where its own losses were other ones; of a fault behind them
nobody knows whose it was. A rank that is named alone for the second time (`ledger/decisions.py`) counts as one whose
fault stays. A step that is not refused costs nothing. (Megatron-LM's re-run logic asks the same questions.)
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from hornbook.data.batch import GlobalBatch
from hornbook.optim.config.clipping_config import AnyClip, StepLimits
from hornbook.parallel.engine import Engine
from hornbook.parallel.world import AXES
from hornbook.run.checkpoints.state import State
from hornbook.run.job.job import Job
from hornbook.run.observe.audit import Audit, Kind, Replay
from hornbook.run.observe.replicas import combined, digests

CLOSE = 1e-2
"""Relative difference up to which two results of a GPU are the same."""
OVERFLOW = 1e19
"""A value whose square is not finite in float32."""


@dataclass(frozen=True)
class Result:
    """What a step came out as, as one rank sees it."""

    applied: bool
    """Whether the update would be made."""
    numbers: list[float]
    """Norm and losses over all ranks."""
    own: list[float]
    """Losses of this rank's microbatches alone."""
    digest: int | None = None
    """Of this rank's gradients; None of those that are not finite, and where an update may have used them up."""

    def equals(self, other: "Result", *, exact: bool) -> bool:
        """Whether two computations came to the same. exact: to the bit; else a limit may lie between them."""
        if not exact:
            return _close(self.numbers, other.numbers)
        bits = None in (self.digest, other.digest) or self.digest == other.digest
        return bits and repr(self.numbers) == repr(other.numbers)  # as text: nan is equal to nan


def _close(one: Sequence[float], other: Sequence[float]) -> bool:
    pairs = zip(one, other, strict=True)
    return all(math.isclose(a, b, rel_tol=CLOSE) or repr(a) == repr(b) for a, b in pairs)


def _own_terms(engine: Engine) -> list[float]:
    """Terms of the step's microbatches on this rank, one after the other. The host waits."""
    return torch.stack(engine.own_terms).flatten().tolist() if engine.own_terms else []


class Recompute:
    """Computes refused steps of an attempt again. Every rank makes the same calls in the same order."""

    def __init__(self, job: Job, state: State, say: Callable[[str], None]) -> None:
        self.audit = Audit(job, state, say)
        """Computes single microbatches again."""
        self._control, self._state, self._world = job.control, state, state.engine.world
        self._audited = job.recipe.guard.audit_every > 0
        self._exact = self._world.device.type == "cpu"
        self._asks_neighbour = (
            self.audit.possible and self._world.size > 1 and self._exact and job.rank_info.host is None
        )

    def refused(
        self, batch: GlobalBatch, how: AnyClip, limits: StepLimits | None, seen: list[float]
    ) -> tuple[bool, list[float], bool]:
        """Ask again about a step that was refused; weights and moments are as before it.

        seen: what `Engine.step_and_fetch` gave. Returns (whether the step is made now, what that gives now, whether the
        step came out the same). Raises FaultyRankError.
        """
        if not self._is_suspicious(seen):
            return False, seen, False
        norms = self._state.engine.clipping.state()
        first = Result(applied=False, numbers=seen, own=_own_terms(self._state.engine))
        second = self._again(batch, how, limits, norms)
        if self._agree(first, second):
            self._ask_neighbour(batch)
            return False, seen, True
        third = self._again(batch, how, limits, norms)
        results = [first, second, third]
        if self._agree(second, third):
            self._tell("transient", results, wrong=first, right=third)
            if not third.applied:
                return False, third.numbers, True
            self._state.engine.step(self._state.optimizer)
            return True, third.numbers, False
        if self._agree(first, third):
            self._tell("transient", results, wrong=second, right=first)
            return False, seen, True
        if self._exact or any(each.applied for each in results):
            self._tell("persistent", results, wrong=second, right=third)
        return False, seen, True

    def _is_suspicious(self, seen: Sequence[float]) -> bool:
        """Whether the guard acts, and no search for the fp16 scale explains what is not finite."""
        guard, scaler = self._state.guard, self._state.engine.scaler
        acts = self._audited or (guard is not None and guard.acts)
        return acts and (scaler is None or all(abs(each) < OVERFLOW for each in seen))

    def _again(self, batch: GlobalBatch, how: AnyClip, limits: StepLimits | None, norms: list[float]) -> Result:
        state, engine = self._state, self._state.engine
        engine.clipping.load(norms)
        self._control.enter("forward_backward", state)
        losses = state.forward_backward(batch)
        self._control.enter("clip", state)
        if state.layers is not None:
            state.layers.begin(state.step + 1)
        norm = engine.clip_gradients(how, limits)
        applied, numbers = engine.fetch(norm, *engine.part_of_batch(), *losses.values())
        gradients = [each.grad for each in engine.named_parameters.values() if each.grad is not None]
        digest = combined(digests(gradients)) if math.isfinite(numbers[0]) else None
        return Result(applied, numbers, _own_terms(engine), digest)

    def _agree(self, one: Result, other: Result) -> bool:
        """Whether two results are the same on every rank."""
        return not self._world.all_reduce_max([not one.equals(other, exact=self._exact)])[0]

    def _ask_neighbour(self, batch: GlobalBatch) -> None:
        """A rank may be wrong in the same way twice: its neighbour computes its microbatches."""
        if not self._asks_neighbour:
            return
        self._state.engine.zero_gradients()  # of the refused step nobody needs them, and their memory is
        for each in batch.batches:
            if (found := self.audit.replay(each)) is None:
                return
            self.audit.conclude(found)

    def _tell(self, kind: Kind, results: Sequence[Result], *, wrong: Result, right: Result) -> None:
        """Record whose fault it was. Raises FaultyRankError where it stays."""
        differs = repr(wrong.own) != repr(right.own) if self._exact else not _close(wrong.own, right.own)
        found = self._world.all_gather_values((differs, [each.digest for each in results]), AXES)
        ranks = [rank for rank, (own, _) in enumerate(found) if own] or list(range(len(found)))
        whole = [[digests[number] for _, digests in found] for number in range(len(results))]
        told = [None if None in each else f"{combined([*filter(None, each)]):016x}" for each in whole]
        norms = [each.numbers[0] for each in results]
        self.audit.conclude(Replay(kind, ranks), digests=told, gradient_norms=norms)
