"""How a trainer holds state and activations (`Holding`), and how hornbook does."""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from hornbook.model.config.flops import FLOAT32, state_bytes
from hornbook.model.config.head_config import CHUNK_BYTES, CHUNK_COPIES, DEVICE_SHARE
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.part import Rows
from hornbook.model.config.saved_bytes import BlockBytes, block_bytes, saved_bytes
from hornbook.parallel.config import HostOffload
from hornbook.plan.counts.adapted import adapted
from hornbook.plan.counts.share import cpu_runtime, gpu_runtime, labels_texts, left_on_device
from hornbook.plan.counts.teacher_counts import live_teacher, teacher_bytes
from hornbook.plan.devices.hardware import Device
from hornbook.plan.update import state_bytes_per_value
from hornbook.settings.fields import kept_by_config
from hornbook.settings.recipe import Recipe


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


_block_bytes = kept_by_config(block_bytes)
_saved_bytes = kept_by_config(saved_bytes)


HOLES = 2
"""Results of each layer with a low-rank update that a CPU's process holds beside what is kept: the allocator returns no
memory, and the product and the sum, which live shortly, leave holes between what stays. Without holes a step took as
much as planned (measured with a threshold of 128 KiB for mapped blocks)."""


class HornbookHolding:
    """hornbook on one kind of device."""

    keeps_gradients: ClassVar[bool] = False

    def __init__(self, device: Device, vocab: int) -> None:
        """vocab: rows of the embedding."""
        self._device, self._vocab = device, vocab

    def state(self, recipe: Recipe, held: int, _experts: int) -> dict[str, int]:
        """float32, or bfloat16 with `bf16-pure`; moments as the rule of each parameter declares them. What is frozen
        has none."""
        parallel, item, trained, whole = recipe.parallel, recipe.train.item_bytes, held, held
        moments = round(held * state_bytes_per_value(recipe.model, self._vocab, recipe.optim, item))
        codes = 0
        if recipe.surgery:
            left = adapted(recipe.model, self._vocab, recipe.surgery, parallel.tensor)
            stages = parallel.pipeline.stages
            trained = left.of_rank(held, stages)
            whole, codes = held + (left.added - left.coded) // stages, left.code_bytes // stages
            # Adapters are small matrices; of a base that is frozen in part the rest has the moments of its values.
            moments = recipe.optim.state_bytes(trained, item) if left.added else moments * trained // held
        found = state_bytes(trained, parallel, recipe.optim, item, moments)
        found["weights"] = state_bytes(whole, parallel, recipe.optim, item, moments)["weights"] + codes
        found, offload = left_on_device(found, parallel.offload), parallel.offload
        found["optimizer"] = found.pop("moments")
        on_host = isinstance(offload, HostOffload) and offload.parameters
        if recipe.train.average.kind != "none" and not on_host:  # of a rank's part of what is trained
            group = parallel.data // parallel.replicas if parallel.shard != "none" else 1
            found["weights"] += FLOAT32 * -(-trained // group)
        found["weights"] += FLOAT32 * (teacher.values if (teacher := live_teacher(recipe)) else 0)
        return found

    def blocks(self, recipe: Recipe, model: ModelConfig, rows: Rows) -> list[BlockBytes]:
        """`hornbook.model.config.saved_bytes`, proven equal to what autograd keeps; with adapters, theirs too."""
        if not recipe.surgery:
            return _block_bytes(model, rows)
        left = adapted(recipe.model, self._vocab, recipe.surgery, recipe.parallel.tensor)
        found = _block_bytes(model, replace(rows, frozen=left.is_norm_frozen))
        more = rows.values(left.inner) + rows.cast(left.added)
        # A matrix that is made of codes is made again for backward: no copy of it is kept.
        more -= rows.stacked(left.beside) if rows.itemsize == 4 else rows.cast(left.coded)
        if self._device.is_cpu and not rows.traced:
            more += rows.values(left.gated * (model.mlp.kind == "glu") + HOLES * left.outputs)
        more //= max(len(found) - left.first, 1)
        frozen = BlockBytes(0, 0, 0)
        return [
            frozen if number < left.first else replace(each, whole=each.whole + more)
            for number, each in enumerate(found)
        ]

    def ends(self, recipe: Recipe, model: ModelConfig, vocab: int, rows: Rows) -> Ends:
        """The loss makes the gradients of hidden states and matrix at once, chunk by chunk."""
        targets = rows.rows if labels_texts(model) else None
        found = _saved_bytes(model, vocab, rows, recipe.parallel.recompute, targets)
        chunk = 0 if self._device.is_cpu else self._device.memory_bytes // DEVICE_SHARE
        last, loss = found.head + found.final, head_bytes(model, vocab, rows, chunk)
        if recipe.surgery and hasattr(model.head, "tied") and adapted(model, vocab, recipe.surgery).is_head_frozen:
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
    if (generator := model.head.generator_of(model)) is not None:
        return head_bytes(generator, vocab, rows, chunk)
    vocab = model.head.num_outputs(vocab)
    if chunk:
        logits = CHUNK_COPIES * min(4 * rows.tokens * vocab, chunk)
    else:
        copies = CHUNK_COPIES if rows.traced and rows.itemsize == 2 else 1
        logits = copies * min(rows.values(vocab), CHUNK_BYTES * vocab)
    return logits + 4 * vocab * (model.embedding.width or model.width)
