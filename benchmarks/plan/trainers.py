"""What the trainers of published measurements hold, where it is not what `benchmarks.plan.mixed` says.

Each is read from the trainer's source at the time of its measurement; none has a constant fitted to a measurement.
"""

from dataclasses import dataclass
from typing import ClassVar

from benchmarks.plan.mixed import ITEM, MixedHolding
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.part import Rows, method
from hornbook.model.config.saved_bytes import BlockBytes
from hornbook.plan.counts.share import CHANNELS, gpu_runtime, share_of, tensor_share
from hornbook.plan.holding.own import Ends
from hornbook.settings.recipe import Recipe

CONTEXT_2022 = 1573 * 2**20
"""A process's context on an A100 under CUDA 11, all kernels loaded: BigScience, chronicles-prequel.md."""
BUCKET = 500_000_000
"""DeepSpeed's `reduce_bucket_size`, values."""


@dataclass(frozen=True)
class DeepSpeedHolding(MixedHolding):
    """Megatron-DeepSpeed of February 2022, as the driver sees it: what torch's allocator has taken and keeps.

    A large block that is freed serves no larger one, so that what the update takes stands beside the activations.
    fp16 (`runtime/zero/stage_1_and_2.py`): gradients are reduced through a bucket; the check for overflow makes a copy
    in float32 of each gradient of the partition, and the norm one in float64, the largest of which is the embedding's
    or the whole partition. bf16 (`runtime/bf16_optimizer.py`, `engine.py`): gradients in bfloat16 stay beside their
    sums in float32; each is copied to float32 before it is added, and all sums to bfloat16 to be reduced.
    """

    is_bf16: bool = False

    def communication(self, recipe: Recipe, held: int, _largest: int, /) -> tuple[int, int]:
        """What the update takes."""
        parallel = recipe.parallel
        embedding = share_of(recipe.model.vocab or 0, parallel.tensor) * recipe.model.width
        if self.is_bf16:
            update = 4 * embedding + 2 * held
        else:
            update = 2 * BUCKET + (4 + 8) * min(embedding, share_of(held, parallel.data_ranks))
        return update, update

    def runtime(self, recipe: Recipe, /) -> int:
        """A communicator for the world and for each axis."""
        parallel = recipe.parallel
        axes = (parallel.world, parallel.data, parallel.tensor, parallel.pipeline.stages)
        return CONTEXT_2022 + CHANNELS * sum(ranks > 1 for ranks in axes)


@dataclass(frozen=True)
class FusedHolding(MixedHolding):
    """Megatron-LM with TransformerEngine 2.11, whose products add to float32 gradients of their own.

    Autograd is given an empty gradient in their place: TransformerEngine keeps one for each shape of a weight
    (`module/base.py`, `get_dummy_wgrad`), Megatron's head makes one when it is needed. The fused loss writes gradients
    over logits (`common/triton/cross_entropy.py`).
    """

    logit_bytes: float = float(ITEM)

    def ends(self, recipe: Recipe, model: ModelConfig, vocab: int, rows: Rows) -> Ends:
        """As before, with the head's empty gradient."""
        found = super().ends(recipe, model, vocab, rows)
        return Ends(found.first, found.shared, found.last, found.loss + ITEM * vocab * model.width)

    def communication(self, recipe: Recipe, _held: int, _largest: int, /) -> tuple[int, int]:
        """Empty gradients of each shape."""
        model = tensor_share(recipe.model, recipe.parallel.tensor)
        layers = [model.layer(number) for number in range(model.layers)]
        parts = [(part, layer) for layer in layers for part in (layer.attention, layer.mlp)]
        shapes = {(each.inner, each.columns) for part, layer in parts for each in method(part, "products")(layer)}
        empty = ITEM * sum(inner * columns for inner, columns in shapes)
        return empty, empty


@dataclass(frozen=True)
class NanotronHolding(MixedHolding):
    """nanotron 0.5: gradients of a microbatch in bfloat16, which are added to float32 sums after its backward pass
    (`optim/gradient_accumulator.py`); with several data ranks DistributedDataParallel's buckets beside them
    (`trainer.py`). The activation of a gated MLP is an operation of its own (`models/llama.py`); the loss makes a copy
    of float32 logits, of which the bfloat16 ones are still there (`parallel/tensor_parallel/functional.py`).
    """

    gated_values: int = 4
    logit_bytes: float = 10.0

    def communication(self, recipe: Recipe, held: int, largest: int, /) -> tuple[int, int]:
        """Buckets, and gradients at the end of backward."""
        buckets = ITEM * held if recipe.parallel.data_ranks > 1 else 0
        first, last = super().communication(recipe, held, largest)
        return first + buckets, last + buckets + ITEM * held


QUANTIZED = {"bnb.nf4": 0.5 + 4 / 64, "bnb.nf4-dq": 0.5 + 1 / 64 + 4 / 64 / 256}
"""Bytes of a value of a linear layer: its code, and the scale of its block of 64, itself in a byte with `dq`."""


@dataclass(frozen=True)
class FrozenHolding:
    """lit-gpt of October 2023, fine-tuning: all frozen in bfloat16 but for the adapter.

    A frozen product keeps nothing, one in 4 bits its input (bitsandbytes' `MatMul4Bit`). Under FSDP gradients are
    summed before they are shared (`no_backward_sync`), those of frozen values with them: a block is one flat parameter.
    """

    keeps_gradients: ClassVar[bool] = True

    method: str
    """`lora` of queries and values, `adapter`, `adapterv2`."""
    quantization: str | None
    trained: int

    def state(self, recipe: Recipe, held: int, _experts: int, /) -> dict[str, int]:
        """Frozen weights, and the adapter's gradients and moments."""
        model, ranks = recipe.model, recipe.parallel.data_ranks
        linear = held - (model.vocab or 0) * model.width
        weights = ITEM * (held - linear) + round(QUANTIZED.get(self.quantization or "", ITEM) * linear)
        gradients = ITEM * (held if ranks > 1 else self.trained)
        return {"weights": weights // ranks, "gradients": gradients, "optimizer": 2 * ITEM * self.trained // ranks}

    def blocks(self, _recipe: Recipe, model: ModelConfig, rows: Rows, /) -> list[BlockBytes]:
        """All blocks are alike."""
        size = rows.tokens * self._token(model)
        each = BlockBytes(size, rows.stream(model), size)
        return [each] * model.layers

    def _token(self, model: ModelConfig) -> int:
        """Bytes of a token in a block."""
        width, hidden, is_llama = model.width, model.hidden, model.mlp.kind == "glu"
        norms = 2 * 4 * width if is_llama else ITEM * width  # a float32 copy for each; of LayerNorms the one input
        kept = norms + ITEM * 6 * width + 4 * model.heads  # queries, keys, what the product gave, the result
        kept += ITEM * (3 if is_llama else 1) * hidden
        if self.quantization:
            kept += ITEM * (2 * width + hidden)
        if self.method == "lora":  # dropout's result and mask; what is put beside keys
            kept += (ITEM + 1 + 2 * ITEM) * width
        else:
            kept += ITEM * width
        if self.method == "adapterv2":  # norms are trained, and a scale of each product
            kept += 2 * 4 * width if is_llama else 0
            kept += ITEM * (5 * width + (2 if is_llama else 1) * hidden)
        return kept

    def ends(self, _recipe: Recipe, model: ModelConfig, vocab: int, rows: Rows, /) -> Ends:
        """Logits and their logarithms, and the head's scale."""
        logits = ITEM * rows.tokens * vocab
        return Ends(0, 0, logits * (2 if self.method == "adapterv2" else 1) + rows.stream(model), logits)

    def communication(self, recipe: Recipe, _held: int, largest: int, /) -> tuple[int, int]:
        """Gathered weights of two blocks and of both ends."""
        model = recipe.model
        gathered = 2 * largest + 2 * (model.vocab or 0) * model.width
        size = ITEM * gathered if recipe.parallel.data_ranks > 1 else 0
        return size, size

    def runtime(self, recipe: Recipe, /) -> int:
        """As any process on a GPU."""
        return gpu_runtime(recipe)
