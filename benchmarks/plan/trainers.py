"""What the trainers of published measurements hold, where it is not what `hornbook.plan.mixed` says.

Each is read from the trainer's source at the time of its measurement; none has a constant fitted to a measurement.
"""

from dataclasses import dataclass

from hornbook.model.config.model import ModelConfig
from hornbook.model.config.part import Rows, method
from hornbook.plan.memory import CHANNELS, Ends
from hornbook.plan.mixed import ITEM, MixedHolding
from hornbook.plan.share import share_of, tensor_share
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

    def communication(self, recipe: Recipe, held: int, _largest: int, /) -> int:
        """What the update takes, and what is there before torch allocates anything."""
        parallel = recipe.parallel
        embedding = share_of(recipe.model.vocab or 0, parallel.tensor) * recipe.model.width
        if self.is_bf16:
            update = 4 * embedding + 2 * held
        else:
            update = 2 * BUCKET + (4 + 8) * min(embedding, share_of(held, parallel.data_ranks))
        axes = (parallel.world, parallel.data, parallel.tensor, parallel.pipeline.stages)
        return update + CONTEXT_2022 + CHANNELS * sum(ranks > 1 for ranks in axes)


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

    def communication(self, recipe: Recipe, held: int, largest: int, /) -> int:
        """Empty gradients of each shape."""
        model = tensor_share(recipe.model, recipe.parallel.tensor)
        layers = [model.layer(number) for number in range(model.layers)]
        parts = [(part, layer) for layer in layers for part in (layer.attention, layer.mlp)]
        shapes = {(each.inner, each.columns) for part, layer in parts for each in method(part, "products")(layer)}
        empty = ITEM * sum(inner * columns for inner, columns in shapes)
        return super().communication(recipe, held, largest) + empty
