"""Memory of each rank of a pipeline by category, in each phase of a step: arithmetic on a recipe.

A step has three phases that may be its peak: `loss`, when the last stage has logits and all activations are there;
`backward`, when a block is computed again and its gradients are made; `update`, when gradients are complete. How a
trainer holds what it holds is a `Holding`: hornbook's own is here, others' are in `hornbook.plan.mixed`.
"""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Protocol

from hornbook.model.config.flops import FLOAT32, state_bytes
from hornbook.model.config.head import CHUNK_BYTES, CHUNK_COPIES, DEVICE_SHARE
from hornbook.model.config.model import ModelConfig
from hornbook.model.config.part import Rows
from hornbook.model.config.saved_bytes import BlockBytes, block_bytes, saved_bytes
from hornbook.parallel.config import BETWEEN, BlockRecompute
from hornbook.plan.cuts import stage_costs
from hornbook.plan.hardware import Device
from hornbook.plan.held import held_experts, held_values
from hornbook.plan.memo import kept_by_model
from hornbook.plan.schedules import Order, rank_order, stages_of
from hornbook.plan.share import rows_of, share_of, tensor_share
from hornbook.settings.fields import Config
from hornbook.settings.recipe import Recipe

CPU_RUNTIME = 500 * 2**20
"""Interpreter, torch and compiled kernels of a process, measured."""
GPU_RUNTIME = 600 * 2**20
"""Context and kernels of a process on a GPU."""
CHANNELS = 400 * 2**20
"""Buffers of collectives of a process on a GPU that has others beside it."""
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
    phases: dict[str, PhaseMemory]

    @property
    def peak_phase(self) -> str:
        """The phase that takes the most."""
        return max(self.phases, key=lambda name: self.phases[name].total)

    @property
    def peak(self) -> PhaseMemory:
        """The phase that takes the most."""
        return self.phases[self.peak_phase]


@dataclass(frozen=True)
class Ends:
    """What a microbatch keeps before the first block, behind the last one, and while the loss is computed."""

    first: int
    shared: int
    """What all blocks of a rank read."""
    last: int
    """Kept from the loss on."""
    loss: int
    """There during the loss alone."""


class Holding(Protocol):
    """How a trainer holds state and activations; all methods are of one rank."""

    def state(self, recipe: Recipe, held: int, experts: int, /) -> dict[str, int]:
        """Bytes of weights, gradients and optimizer for `held` values, by category; `experts` of them are of experts,
        which ranks of the axis `expert` do not have in common."""
        ...

    def blocks(self, recipe: Recipe, model: ModelConfig, rows: Rows, /) -> list[BlockBytes]:
        """What each block keeps of a microbatch; `model` is the rank's share."""
        ...

    def ends(self, recipe: Recipe, model: ModelConfig, vocab: int, rows: Rows, /) -> Ends:
        """What stands around the blocks; `vocab` is the rank's share."""
        ...

    def communication(self, recipe: Recipe, held: int, largest: int, /) -> int:
        """Buffers; `largest` values has the largest block."""
        ...

    def runtime(self, recipe: Recipe, /) -> int:
        """What a process holds before it has a model, and channels of collectives."""
        ...


_block_bytes = kept_by_model(block_bytes)
_saved_bytes = kept_by_model(saved_bytes)
_rank_order = lru_cache(1024)(rank_order)


class HornbookHolding:
    """hornbook on one kind of device."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def state(self, recipe: Recipe, held: int, _experts: int) -> dict[str, int]:
        """float32, or bfloat16 with `bf16-pure`; moments as the optimizer declares them."""
        found = state_bytes(held, recipe.parallel, recipe.optim, recipe.train.item_bytes)
        offload = recipe.parallel.offload
        found["optimizer"] = found.pop("moments") * (not getattr(offload, "optimizer", False))
        found["weights"] *= not getattr(offload, "parameters", False)
        if recipe.train.average.kind != "none":
            found["weights"] += FLOAT32 * held
        return found

    def blocks(self, _recipe: Recipe, model: ModelConfig, rows: Rows) -> list[BlockBytes]:
        """`hornbook.model.config.saved_bytes`, proven equal to what autograd keeps."""
        return _block_bytes(model, rows)

    def ends(self, recipe: Recipe, model: ModelConfig, vocab: int, rows: Rows) -> Ends:
        """The loss makes the gradients of hidden states and matrix at once, chunk by chunk."""
        found = _saved_bytes(model, vocab, rows, recipe.parallel.recompute)
        chunk = 0 if self._device.is_cpu else self._device.memory_bytes // DEVICE_SHARE
        return Ends(found.ends, found.shared, found.head, head_bytes(model, vocab, rows, chunk))

    def communication(self, recipe: Recipe, held: int, largest: int) -> int:
        """Gathered weights of the block at work and of the next one, or buckets of gradients."""
        parallel = recipe.parallel
        if parallel.data_ranks == 1:
            return 0
        item = 2 if parallel.gather == "bf16" else recipe.train.item_bytes
        if parallel.shard == "everything":
            whole = held if not parallel.reshard else 2 * largest
            return item * whole + recipe.train.item_bytes * largest
        bucket = int((parallel.bucket_mb or 25) * 2**20)
        return 2 * min(bucket, recipe.train.item_bytes * held)

    def runtime(self, recipe: Recipe) -> int:
        """Interpreter and libraries, or a device's context."""
        return CPU_RUNTIME if self._device.is_cpu else gpu_runtime(recipe)


def gpu_runtime(recipe: Recipe) -> int:
    """Context and kernels of a process on a GPU, and channels to others."""
    return GPU_RUNTIME + (CHANNELS if recipe.parallel.world > 1 else 0)


def head_bytes(model: ModelConfig, vocab: int, rows: Rows, chunk: int) -> int:
    """Bytes while the loss of some tokens is computed: logits, their copies, a product of the matrix's size.

    chunk: bytes of logits that a device holds at once; 0 on a CPU.
    """
    logits = CHUNK_COPIES * min(4 * rows.tokens * vocab, chunk) if chunk else CHUNK_BYTES * vocab
    return logits + 4 * vocab * (model.embedding.width or model.width)


def estimate_memory(
    recipe: Recipe, vocab: int, device: Device, holding: Holding | None = None, *, traced: bool = False
) -> list[RankMemory]:
    """Of each rank of the pipeline; ranks along other axes hold as much. vocab: rows of the embedding.

    traced: as a dry run on fake tensors finds it, where parts are torch's operations as on a GPU. Raises UsageError for
    parts that do not say what they keep.
    """
    return _Estimate(recipe, vocab, device, holding or HornbookHolding(device), traced).ranks()


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

    def ranks(self) -> list[RankMemory]:
        recipe = self.recipe
        held = held_values(recipe.model, self.vocab, recipe.parallel, recipe.train.sequence)
        return [self._rank(rank, values) for rank, values in enumerate(held)]

    def _stages(self, rank: int) -> dict[int, range]:
        """The stages of a rank -> their blocks."""
        parallel, pipeline = self.recipe.parallel, self.recipe.parallel.pipeline
        if pipeline.stages == 1:
            return {0: range(len(self._blocks))}
        bounds, _ = stage_costs(parallel, self.recipe.model, self.vocab, self.recipe.train.sequence)
        stages = stages_of(pipeline.schedule, rank, pipeline.stages, pipeline.chunks_per_rank)
        return {stage: range(bounds[stage], bounds[stage + 1]) for stage in stages}

    def _kept(self, number: int) -> int:
        recompute = self.recipe.parallel.recompute
        again = isinstance(recompute, BlockRecompute) and number % recompute.every == 0
        return self._blocks[number].stream if again else self._blocks[number].whole

    def _rank(self, rank: int, held: int) -> RankMemory:
        recipe, parallel = self.recipe, self.recipe.parallel
        stages, last = self._stages(rank), len(self._blocks) - 1
        own = [number for span in stages.values() for number in span]
        of_stage = {stage: sum(map(self._kept, span)) for stage, span in stages.items()}
        for stage, span in stages.items():
            of_stage[stage] += self._ends.first * (0 in span) + self._ends.shared // len(stages)
        kept, under_way = self._most_held(rank, of_stage)
        if getattr(parallel.offload, "activations", False):
            kept = min(kept, (0 if self.device.is_cpu else 2 * BETWEEN) + self._ends.first + self._ends.shared)
        again = [number for number in own if self._kept(number) != self._blocks[number].whole]
        recomputed = max((self._blocks[number].whole for number in again), default=0)
        block = max(recomputed, *(self._blocks[number].whole for number in own), 0)
        largest = held // max(len(own), 1)
        state = self.holding.state(recipe, held, held_experts(recipe.model, parallel.tensor, parallel.expert, own))
        common = PhaseMemory(
            weights=state["weights"],
            gradients=state["gradients"],
            optimizer=state["optimizer"],
            communication=self.holding.communication(recipe, held, largest),
            runtime=self.holding.runtime(recipe),
        )
        has_head = last in own
        phases = {
            "loss": {"activations": kept, "logits": has_head * (self._ends.last + self._ends.loss)},
            "backward": {
                "activations": kept,
                "logits": has_head * self._ends.last,
                "temporaries": recomputed + block,
            },
            "update": {"temporaries": 4 * max(largest, held // 16) if self.device.is_cpu else 0},
        }
        found = {name: common.model_copy(update=more) for name, more in phases.items()}
        return RankMemory(rank=rank, parameters=held, under_way=under_way, phases=found)

    def _most_held(self, rank: int, of_stage: dict[int, int]) -> tuple[int, float]:
        """(bytes of all microbatches under way, how many full stages that is)."""
        pipeline = self.recipe.parallel.pipeline
        if pipeline.stages == 1:
            return of_stage[0], 1.0
        microbatches = -(-self.recipe.train.num_microbatches // self.recipe.parallel.data_ranks)
        if pipeline.schedule in ("gpipe", "1f1b"):
            count = microbatches if pipeline.schedule == "gpipe" else min(microbatches, pipeline.stages - rank)
            return count * sum(of_stage.values()), float(count)
        few = min(microbatches, 4 * pipeline.stages)  # schedules repeat themselves from there on
        order = _rank_order(pipeline.schedule, rank, pipeline.stages, pipeline.chunks_per_rank, few)
        most = most_held(order, of_stage)
        return most, most / max(sum(of_stage.values()), 1)


def most_held(order: Order, sizes: dict[int, int]) -> int:
    """Most bytes at once of passes in this order, where a microbatch in stage s holds sizes[s]."""
    held = most = 0
    for action in order:
        held += {"F": 1, "B": -1, "W": -1, "I": 0}[action.kind] * sizes[action.stage]
        most = max(most, held)
    return most


def replace_train(recipe: Recipe, **changes: object) -> Recipe:
    """The recipe with other settings of [train]."""
    return recipe.model_copy(update={"train": recipe.train.model_copy(update=changes)})
