"""Memory of each rank of a pipeline by category, in each phase of a step: arithmetic on a recipe.

A step has three phases that may be its peak: `loss`, when the last stage has logits and all activations are there;
`backward`, when a block is computed again and its gradients are made; `update`, when gradients are complete. How a
trainer holds what it holds is a `Holding`: hornbook's own is here, others' are in `hornbook.plan.mixed`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from operator import mul
from typing import ClassVar, Protocol

from hornbook.model.config.flops import FLOAT32, state_bytes
from hornbook.model.config.head import CHUNK_BYTES, CHUNK_COPIES, DEVICE_SHARE
from hornbook.model.config.model import ModelConfig
from hornbook.model.config.part import Rows
from hornbook.model.config.saved_bytes import BlockBytes, block_bytes, saved_bytes
from hornbook.parallel.config import BETWEEN, BlockRecompute
from hornbook.plan.devices.hardware import Device
from hornbook.plan.held import adapted, held_experts, held_values
from hornbook.plan.memo import kept_by_model
from hornbook.plan.share import cpu_runtime, gpu_runtime, labels_texts, rows_of, share_of, tensor_share
from hornbook.plan.stages.cuts import stage_costs
from hornbook.plan.stages.pipeline import fullest
from hornbook.plan.stages.schedules import stages_of
from hornbook.plan.teacher import live_teacher, teacher_bytes
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

    keeps_gradients: ClassVar[bool]
    """Gradients have memory from the start of a step on; else each gets it in the backward pass."""

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

    def communication(self, recipe: Recipe, held: int, largest: int, /) -> tuple[int, int]:
        """Buffers until backward begins, and at its end; `largest` values has the largest block."""
        ...

    def runtime(self, recipe: Recipe, /) -> int:
        """What a process holds before it has a model, and channels of collectives."""
        ...


_block_bytes = kept_by_model(block_bytes)
_saved_bytes = kept_by_model(saved_bytes)


HOLES = 2
"""Results of each layer with a low-rank update that a CPU's process holds beside what is kept: the allocator returns no
memory, and the product and the sum, which live shortly, leave holes between what stays. Without holes a step took as
much as planned (measured with a threshold of 128 KiB for mapped blocks)."""


class HornbookHolding:
    """hornbook on one kind of device."""

    keeps_gradients: ClassVar[bool] = False

    def __init__(self, device: Device) -> None:
        self._device = device

    def state(self, recipe: Recipe, held: int, _experts: int) -> dict[str, int]:
        """float32, or bfloat16 with `bf16-pure`; moments as the optimizer declares them. Frozen values have none."""
        found = state_bytes(held, recipe.parallel, recipe.optim, recipe.train.item_bytes)
        if recipe.surgery:
            left, stages = adapted(recipe.model, recipe.surgery), recipe.parallel.pipeline.stages
            trained, frozen = left.trained // stages, held - left.coded // stages
            whole = state_bytes(frozen + trained, recipe.parallel, recipe.optim, recipe.train.item_bytes)
            found = state_bytes(trained, recipe.parallel, recipe.optim, recipe.train.item_bytes)
            found["weights"] = whole["weights"] + left.code_bytes // stages
        offload = recipe.parallel.offload
        found["optimizer"] = found.pop("moments") * (not getattr(offload, "optimizer", False))
        found["weights"] *= not getattr(offload, "parameters", False)
        found["weights"] += FLOAT32 * held * (recipe.train.average.kind != "none")
        found["weights"] += FLOAT32 * (teacher.values if (teacher := live_teacher(recipe)) else 0)
        return found

    def blocks(self, recipe: Recipe, model: ModelConfig, rows: Rows) -> list[BlockBytes]:
        """`hornbook.model.config.saved_bytes`, proven equal to what autograd keeps; with adapters, theirs too."""
        if not recipe.surgery:
            return _block_bytes(model, rows)
        left, found = adapted(model, recipe.surgery), _block_bytes(model, rows)
        more = rows.values(left.inner) + rows.cast(left.trained) + (4 * left.coded if rows.itemsize == 4 else 0)
        if self._device.is_cpu and not rows.traced:
            more += rows.values(left.gated * (model.mlp.kind == "glu") + HOLES * left.outputs)
        return [replace(each, whole=each.whole + more // len(found)) for each in found]

    def ends(self, recipe: Recipe, model: ModelConfig, vocab: int, rows: Rows) -> Ends:
        """The loss makes the gradients of hidden states and matrix at once, chunk by chunk."""
        targets = rows.rows if labels_texts(model) else None
        found = _saved_bytes(model, vocab, rows, recipe.parallel.recompute, targets)
        chunk = 0 if self._device.is_cpu else self._device.memory_bytes // DEVICE_SHARE
        last, loss = found.head + found.final, head_bytes(model, vocab, rows, chunk)
        if recipe.surgery and hasattr(model.head, "tied"):  # the matrix is frozen
            matrix = 4 * vocab * (model.embedding.width or model.width)
            last, loss = last - matrix, loss - matrix
        kept, passing = teacher_bytes(recipe, rows)
        return Ends(found.ends - found.final, found.shared, last + kept, loss + passing)

    def communication(self, recipe: Recipe, held: int, largest: int) -> tuple[int, int]:
        """Gathered weights of the block at work and of the next one, or buckets of gradients."""
        parallel = recipe.parallel
        if parallel.data_ranks == 1:
            return 0, 0
        item = 2 if parallel.gather == "bf16" else recipe.train.item_bytes
        if parallel.shard == "everything":
            whole = held if not parallel.reshard else 2 * largest
            return item * whole, item * whole + recipe.train.item_bytes * largest
        bucket = int((parallel.bucket_mb or 25) * 2**20)
        return 0, 2 * min(bucket, recipe.train.item_bytes * held)

    def runtime(self, recipe: Recipe) -> int:
        """Interpreter and libraries, or a device's context."""
        return cpu_runtime(recipe) if self._device.is_cpu else gpu_runtime(recipe)


def head_bytes(model: ModelConfig, vocab: int, rows: Rows, chunk: int) -> int:
    """Bytes while the loss of some tokens is computed: logits, their copies, a product of the matrix's size.

    chunk: bytes of logits that a device holds at once; 0 on a CPU.
    """
    vocab = model.head.num_outputs(vocab)
    if chunk:
        logits = CHUNK_COPIES * min(4 * rows.tokens * vocab, chunk)
    else:
        copies = CHUNK_COPIES if rows.traced and rows.itemsize == 2 else 1
        logits = copies * min(rows.values(vocab), CHUNK_BYTES * vocab)
    return logits + 4 * vocab * (model.embedding.width or model.width)


def estimate_memory(
    recipe: Recipe, vocab: int, device: Device, holding: Holding | None = None, *, traced: bool = False
) -> list[RankMemory]:
    """Of each rank of the pipeline; ranks along other axes hold as much. vocab: rows of the embedding.

    traced: as a dry run on fake tensors finds it, where parts are torch's operations as on a GPU. Raises UsageError for
    parts that do not say what they keep.
    """
    return list(_Estimate(recipe, vocab, device, holding or HornbookHolding(device), traced).ranks())


def fits_memory(recipe: Recipe, vocab: int, device: Device, capacity: float) -> bool:
    """Whether no rank holds more than `capacity` bytes; the first one that does ends it."""
    ranks = _Estimate(recipe, vocab, device, HornbookHolding(device), traced=False).ranks()
    return all(each.peak.total <= capacity for each in ranks)


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
        return replace(found, traced=self.traced, frozen=bool(self.recipe.surgery))

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
        recipe = self.recipe
        held = held_values(recipe.model, self.vocab, recipe.parallel, recipe.train.sequence)
        return (self._rank(rank, values) for rank, values in enumerate(held))

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
        stages = self._stages(rank)
        own = [number for span in stages.values() for number in span]
        of_stage = {stage: sum(map(self._kept, span)) for stage, span in stages.items()}
        for stage, span in stages.items():
            of_stage[stage] += self._ends.first * (0 in span) + self._ends.shared // len(stages)
        kept, under_way = self._most_held(rank, of_stage, sum(self._held_once[number] for number in own))
        if getattr(parallel.offload, "activations", False):
            kept = min(kept, (0 if self.device.is_cpu else 2 * BETWEEN) + self._ends.first + self._ends.shared)
        largest = held // max(len(own), 1)
        state = self.holding.state(recipe, held, held_experts(recipe.model, parallel.tensor, parallel.expert, own))
        forward, backward = self.holding.communication(recipe, held, largest)
        common = PhaseMemory(
            weights=state["weights"],
            gradients=state["gradients"],
            optimizer=state["optimizer"],
            communication=backward,
            runtime=self.holding.runtime(recipe),
        )
        phases = self._phases(own, kept, common.gradients, (forward, backward))
        if self.device.is_cpu and not self.traced:  # memory of gradients that are not there stays with the process
            for more in phases.values():
                more["runtime"] = common.runtime + common.gradients - more["gradients"]
        found = {name: common.model_copy(update=more) for name, more in phases.items()}
        step = 4 * max(largest, held // 16) if self.device.is_cpu else 0
        found["update"] = common.model_copy(update={"temporaries": step})
        kept += self._ends.last * (len(self._blocks) - 1 in own)
        return RankMemory(rank=rank, parameters=held, under_way=under_way, kept=kept, phases=found)

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
