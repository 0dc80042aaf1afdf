"""Memory of each rank of a pipeline by category, in each phase of a step: arithmetic on a recipe.

A step has three phases that may be its peak: `loss`, when the last stage has logits and all activations are there;
`backward`, when a block is computed again and its gradients are made; `update`, when gradients are complete. How a
trainer holds what it holds is a `Holding`: hornbook's is in `hornbook.plan.holding.own`, others' in `mixed` beside it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from operator import mul
from typing import NamedTuple

from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.part import Rows
from hornbook.model.config.saved_bytes import BlockBytes
from hornbook.parallel.axes.pipeline.cuts import stage_blocks, stage_costs
from hornbook.parallel.axes.pipeline.forecast import fullest
from hornbook.parallel.axes.pipeline.pass_orders import stages_of
from hornbook.parallel.config import BETWEEN, BlockRecompute, NoOffload
from hornbook.plan.counts.held_counts import held_experts, held_values
from hornbook.plan.counts.share import rows_of, share_of, tensor_share
from hornbook.plan.devices.hardware import Device
from hornbook.plan.holding.own import Ends, Holding, HornbookHolding
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe

CATEGORIES = (
    "weights",
    "gradients",
    "optimizer",
    "activations",
    "logits",
    "temporaries",
    "communication",
    "runtime",
)


class PhaseMemory(Config):
    """Bytes of a rank in one phase."""

    weights: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0
    """What blocks and the ends keep for backward, of all microbatches under way."""
    logits: int = 0
    """Logits, their copies, and the gradients that the loss makes."""
    temporaries: int = 0
    """A block that is computed again, gradients of its activations, copies for the update."""
    communication: int = 0
    """Gathered weights, buckets of gradients."""
    runtime: int = 0
    """Interpreter, libraries, the device's context, channels of collectives."""

    @property
    def total(self) -> int:
        """All of them."""
        return sum(getattr(self, name) for name in CATEGORIES)


class RankMemory(Config):
    """Memory of the ranks of one stage."""

    rank: int
    """Along the pipeline."""
    parameters: int
    """Values that it would hold if data ranks shared nothing."""
    under_way: float
    """Microbatches of a full stage whose activations it holds at once."""
    kept: int
    """Bytes kept for backward at once, at most."""
    phases: dict[str, PhaseMemory]
    elsewhere: int = 0
    """Bytes that are on the host or on disk (`parallel.offload`)."""

    @property
    def peak_phase(self) -> str:
        """The phase that takes the most."""
        return max(self.phases, key=lambda name: self.phases[name].total)

    @property
    def peak(self) -> PhaseMemory:
        """The phase that takes the most."""
        return self.phases[self.peak_phase]


def estimate_memory(
    recipe: Recipe, vocab: int, device: Device, holding: Holding | None = None, *, traced: bool = False
) -> list[RankMemory]:
    """Of each rank of the pipeline; ranks along other axes hold as much. vocab: rows of the embedding.

    traced: as a dry run on fake tensors finds it, where parts are torch's operations as on a GPU. Raises UsageError for
    parts that do not say what they keep.
    """
    return list(_Estimate(recipe, vocab, device, holding or HornbookHolding(device, vocab), traced).ranks())


def fits_memory(recipe: Recipe, vocab: int, device: Device, capacity: float) -> bool:
    """Whether no rank holds more than `capacity` bytes; the first one that does ends it."""
    ranks = _Estimate(recipe, vocab, device, HornbookHolding(device, vocab), traced=False).held()
    return all(sum(phase.values()) <= capacity for each in ranks for phase in each.phases.values())


class _Held(NamedTuple):
    """What `RankMemory` says of a rank, its phases as numbers by category."""

    rank: int
    parameters: int
    under_way: float
    kept: int
    phases: dict[str, dict[str, int]]
    elsewhere: int


@dataclass(frozen=True)
class _Estimate:
    recipe: Recipe
    vocab: int
    device: Device
    holding: Holding
    traced: bool

    @cached_property
    def _rows(self) -> Rows:
        found = rows_of(self.recipe, self.recipe.train.micro_rows, fused=self.traced or not self.device.is_cpu)
        return replace(found, traced=self.traced)

    @cached_property
    def _model(self) -> ModelConfig:
        return tensor_share(self.recipe.model, self.recipe.parallel.tensor)

    @cached_property
    def _blocks(self) -> list[BlockBytes]:
        return self.holding.blocks(self.recipe, self._model, self._rows)

    @cached_property
    def _ends(self) -> Ends:
        vocab = share_of(self.vocab, self.recipe.parallel.tensor)
        return self.holding.ends(self.recipe, self._model, vocab, self._rows)

    def ranks(self) -> Iterator[RankMemory]:
        for each in self.held():
            phases = {name: PhaseMemory().model_copy(update=phase) for name, phase in each.phases.items()}
            yield RankMemory.model_validate(each._asdict() | {"phases": phases})

    def held(self) -> Iterator[_Held]:
        recipe = self.recipe
        held = held_values(recipe.model, self.vocab, recipe.parallel, recipe.train.sequence)
        return (self._rank(rank, values) for rank, values in enumerate(held))

    def _stages(self, rank: int) -> dict[int, range]:
        """The stages of a rank -> their blocks."""
        parallel, pipeline = self.recipe.parallel, self.recipe.parallel.pipeline
        if pipeline.stages == 1:
            return {0: range(len(self._blocks))}
        bounds, _ = stage_costs(parallel, self.recipe.model, self.vocab, self.recipe.train.sequence)
        blocks = stage_blocks(bounds, self.recipe.model)
        stages = stages_of(pipeline.schedule, rank, pipeline.stages, pipeline.chunks_per_rank)
        return {stage: blocks[stage] for stage in stages}

    def _kept(self, number: int) -> int:
        recompute = self.recipe.parallel.recompute
        again = isinstance(recompute, BlockRecompute) and number % recompute.every == 0
        return self._blocks[number].stream if again else self._blocks[number].whole

    def _rank(self, rank: int, held: int) -> _Held:
        recipe, parallel = self.recipe, self.recipe.parallel
        stages = self._stages(rank)
        own = [number for span in stages.values() for number in span]
        of_stage = {stage: sum(map(self._kept, span)) for stage, span in stages.items()}
        for stage, span in stages.items():
            of_stage[stage] += self._ends.first * (0 in span) + self._ends.shared // len(stages)
            if stage and self._model.mtp.depth and len(self._blocks) - 1 in span:  # positions are read once more
                of_stage[stage] += self._ends.first * self._model.mtp.reads_tokens + self._ends.shared
        made, under_way = self._most_held(rank, of_stage, sum(self._held_once[number] for number in own))
        kept = made
        if getattr(parallel.offload, "activations", False):
            kept = min(kept, (0 if self.device.is_cpu else 2 * BETWEEN) + self._ends.first + self._ends.shared)
        largest = held // max(len(own), 1)
        experts = held_experts(recipe.model, parallel.tensor, parallel.expert, own)
        state = self._state(held, experts)
        elsewhere = 0
        if parallel.offload.kind != "none":
            elsewhere = made - kept + self._all_state(held, experts) - sum(state.values())
        forward, backward = self.holding.communication(recipe, held, largest)
        common = {**state, "communication": backward, "runtime": self._runtime}
        phases = self._phases(own, kept, common["gradients"], (forward, backward))
        if self.device.is_cpu and not self.traced:  # memory of gradients that are not there stays with the process
            for more in phases.values():
                more["runtime"] = common["runtime"] + common["gradients"] - more["gradients"]
        step = 4 * max(largest, held // 16) if self.device.is_cpu else 0
        phases["update"] = {"temporaries": step}
        kept += self._ends.last * (len(self._blocks) - 1 in own)
        phases = {name: common | more for name, more in phases.items()}
        return _Held(rank, held, under_way, kept, phases, elsewhere)

    def _all_state(self, held: int, experts: int) -> int:
        """Bytes of a rank's state, wherever it is."""
        parallel = self.recipe.parallel.model_copy(update={"offload": NoOffload()})
        return sum(self.holding.state(self.recipe.model_copy(update={"parallel": parallel}), held, experts).values())

    @cached_property
    def _runtime(self) -> int:
        return self.holding.runtime(self.recipe)

    @cached_property
    def _state(self) -> Callable[[int, int], dict[str, int]]:
        """Bytes per category for `values` parameters, of which `experts` belong to experts.

        Cached, because equal stages ask for the same sizes.
        """
        return cache(partial(self.holding.state, self.recipe))

    def _phases(self, own: list[int], kept: int, gradients: int, buffers: tuple[int, int]) -> dict[str, dict[str, int]]:
        """What changes in a microbatch, on a rank with the blocks `own`; buffers as of `Holding.communication`.

        A backward pass holds most at its beginning, or at its end if gradients come with it.
        """
        has_head, before = len(self._blocks) - 1 in own, gradients if self._holds_gradients else 0
        again = [number for number in own if self._kept(number) != self._blocks[number].whole]
        temporaries = max((self._blocks[number].whole for number in again), default=0)
        temporaries += max((self._blocks[number].backward for number in own), default=0)
        begin = {"gradients": before, "activations": kept, "communication": buffers[0]}
        loss = {**begin, "logits": has_head * (self._ends.last + self._ends.loss)}
        begin |= {"logits": has_head * self._ends.last, "temporaries": temporaries}
        remaining = self._ends.first + self._ends.shared + (self._kept(own[0]) if own else 0)
        end = {"gradients": gradients, "activations": min(remaining, kept), "temporaries": temporaries}
        end |= {"communication": buffers[1]}
        return {"loss": loss, "backward": max(begin, end, key=lambda each: sum(each.values()))}

    @cached_property
    def _held_once(self) -> list[int]:
        """Of what each block keeps, what all microbatches have in common: weights in the dtype of products."""
        parallel, rows = self.recipe.parallel, self._rows
        if parallel.pipeline.stages == 1 or parallel.recompute.kind != "none" or parallel.shard == "everything":
            return [0] * len(self._blocks)
        doubled = self.holding.blocks(self.recipe, self._model, replace(rows, rows=2 * rows.rows))
        pairs = zip(self._blocks, doubled, strict=True)
        return [max(2 * each.whole - more.whole, 0) for each, more in pairs]

    @property
    def _holds_gradients(self) -> bool:
        """Whether gradients of microbatches before are there while one goes forward."""
        return self.holding.keeps_gradients or self._microbatches > 1

    @property
    def _microbatches(self) -> int:
        """Of a rank in a step."""
        return -(-self.recipe.train.num_microbatches // self.recipe.parallel.data_ranks)

    def _most_held(self, rank: int, of_stage: dict[int, int], once: int) -> tuple[int, float]:
        """(bytes of all microbatches under way, how many full stages that is); `once`: bytes they have in common."""
        pipeline, microbatches = self.recipe.parallel.pipeline, self._microbatches
        whole = max(sum(of_stage.values()), 1)
        if pipeline.stages == 1:
            return of_stage[0], 1.0
        if pipeline.schedule in ("gpipe", "1f1b"):
            count = microbatches if pipeline.schedule == "gpipe" else min(microbatches, pipeline.stages - rank)
            return count * (whole - once) + once, float(count)
        few = min(microbatches, 4 * pipeline.stages)  # schedules repeat themselves from there on
        held = fullest(pipeline.schedule, rank, pipeline.stages, pipeline.chunks_per_rank, few)
        sizes = [of_stage[stage] for stage in sorted(of_stage)]
        share = max(sum(map(mul, each, sizes)) for each in held) / whole
        return round(share * (whole - once)) + once, share
