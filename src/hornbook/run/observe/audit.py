"""Computes gradients of microbatches again: on the same rank, whose bits must be the same, and on its neighbour.

An answer that the same rank does not give twice is a fault that passed; one that its neighbour does not give is a fault
that stays, of one of the two; an answer that both give is real. (Megatron-LM's re-run logic compares in this way too;
here all is compared to the bit, since sums of a rank have one order.) Only where every rank holds the whole model, and
no experts count what passes through them: elsewhere gradients of one rank alone do not exist.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from hornbook.data.batch import Batch, GlobalBatch
from hornbook.model.layers.dropout import row_keys
from hornbook.model.layers.transfer import to_device
from hornbook.model.mlp.experts import Experts
from hornbook.optim.config.clipping import AnyClip
from hornbook.parallel.config import ParallelConfig
from hornbook.parallel.gradients.norm import StepLimits
from hornbook.parallel.runner import model_inputs
from hornbook.parallel.world import DATA
from hornbook.run.config import LossConfig
from hornbook.run.job import Job
from hornbook.run.observe.replicas import combined, digests
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


def microbatch_gradients(state: State, loss: LossConfig, batch: Batch, key: tuple[int, int]) -> list[Tensor]:
    """Gradients of one microbatch's summed loss, of this rank alone; changes nothing. key: (seed, step)."""
    model, device = state.engine.model, state.engine.world.device
    assert model.head is not None
    model.train()
    keys = to_device(row_keys(*key, batch.samples), device)
    hidden, _ = model(**model_inputs(model, batch, keys, device, masked=False))
    targets = to_device(batch.targets if batch.values is None else batch.values, device)
    more = {"smoothing": loss.smoothing, "z_loss": loss.z_loss, "lengths": batch.document_lengths, "keys": keys}
    terms = model.head.losses(hidden, targets, to_device(batch.weights, device), **more)
    total = torch.stack(list(terms.values())).sum()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(total, trained, allow_unused=True)  # `grad` of parameters, and their hooks, stay out
    return [each for each in found if each is not None]


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
        self._loss, self._seed = recipe.train.loss, recipe.seed
        self._state, self._world, self._ledger, self._say = state, state.engine.world, job.ledger, say
        if recipe.guard.audit_every and not self.possible:
            say("warning: guard.audit_every: ranks that hold a part of the model, or experts, are not audited")

    def audit_if_due(self, batch: GlobalBatch) -> None:
        """Before the update of a step that is due: compute its first microbatch again. Raises FaultyRankError."""
        if not is_due(self._state.step + 1, self._every):
            return
        self._tell(self.replay(batch.batches[0]))

    def replay(self, batch: Batch) -> Replay:
        """Compute a microbatch of this rank twice, and that of the rank before it once; every rank calls it."""
        world, size = self._world, self._world.data_size
        theirs = world.all_gather_values(batch, DATA)[(world.data_rank - 1) % size]
        own = self._digest(batch), self._digest(batch), self._digest(theirs)
        return judge(world.all_gather_values(own, DATA))

    def _digest(self, batch: Batch) -> int:
        key = self._seed, self._state.step
        return combined(digests(microbatch_gradients(self._state, self._loss, batch, key)))

    @property
    def retries(self) -> bool:
        """Whether refused steps are computed again; where the fp16 scale is searched for, refusals are normal."""
        return self._every > 0 and self._state.engine.scaler is None

    def retry(
        self, batch: GlobalBatch, how: AnyClip, limits: StepLimits | None, norms: list[float], seen: list[float]
    ) -> tuple[bool, list[float]]:
        """Compute a refused step again and update with what comes out now: a fault that has passed costs no step.

        Every rank calls it, with weights and moments as before the step. norms: `Engine.clipping.state()` before it;
        seen: what `Engine.step_and_fetch` gave. Returns what that gives now. Raises FaultyRankError.
        """
        engine, state = self._state.engine, self._state
        engine.zero_gradients()
        engine.clipping.load(norms)
        losses = engine.forward_backward(batch.batches, batch.total_weight, key=(self._seed, state.step))
        norm = engine.clip_gradients(how, limits)
        found = engine.step_and_fetch(state.optimizer, norm, *engine.part_of_batch(), *losses.values())
        if self._world.all_reduce_max([repr(found[1]) != repr(seen)])[0]:  # as text: nan is equal to nan
            self._tell(Replay("transient", list(range(self._world.size))))
            return found
        for each in batch.batches:
            self._tell(self.replay(each))
        return found

    def _tell(self, found: Replay) -> None:
        """Record what computing again has shown, unless all is well. Raises FaultyRankError."""
        if found.kind == "real":
            return
        self._ledger.note("audit", self._state, found=found.kind, ranks=found.ranks)
        text = f"step {self._state.step + 1} computed again has other bits on rank {', '.join(map(str, found.ranks))}"
        self._say(f"warning: {text}: a {found.kind} fault")
        if found.kind == "persistent":
            raise FaultyRankError(f"{text}, every time")
