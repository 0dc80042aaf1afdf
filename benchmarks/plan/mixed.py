"""Memory of trainers that keep 16-bit weights beside a float32 copy, with fused kernels, as Megatron-LM does.

For a GPT block this is Korthikanti et al. 2022 (arXiv 2205.05198): s b h (10 + 24 / t + 5 a s / (h t)) bytes on each of
t tensor ranks, everything over t with sequence parallelism, without the last term where attention is computed again;
for the state see Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054).
"""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from hornbook.model.config.attention_config import FullAttentionConfig, LatentAttentionConfig
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import ModelConfig, Parallel
from hornbook.model.config.part import Rows
from hornbook.model.config.saved_bytes import BlockBytes
from hornbook.parallel.config import SelectiveRecompute
from hornbook.plan.counts.share import gpu_runtime
from hornbook.plan.holding.own import Ends
from hornbook.settings.fields import kept_by_config
from hornbook.settings.recipe import Recipe

ITEM = 2
"""Bytes of a value of an activation."""


@dataclass(frozen=True)
class MixedHolding:
    """Bytes for each value of the parameters, and what kernels keep."""

    keeps_gradients: ClassVar[bool] = True

    weights: float = 2.0
    gradients: float = 4.0
    optimizer: float = 12.0
    """A float32 copy of the weights, and Adam's two moments."""
    stores_scores: bool = False
    """Attention is written out, and its probabilities are stored: before flash attention."""
    gated_values: int = 3
    """Values kept of each inner dim of a gated MLP: gate, up, product; 4 where the activation has its own kernel."""
    keeps_products: bool = False
    """With `selective` recomputation every other product is kept, and what attention gives (torchtitan's choice), in
    place of all but the probabilities."""
    logit_bytes: float = 4.0
    """Bytes of each logit while the loss is computed."""
    gathered: float = 2.0
    """Bytes of a gathered weight where weights are sharded (ZeRO 3)."""

    def state(self, recipe: Recipe, held: int, experts: int = 0) -> dict[str, int]:
        """Shared over data and context ranks as `parallel.shard` says; experts over those that have the same ones."""
        parallel = recipe.parallel
        ranks = parallel.data // parallel.replicas * parallel.context.ranks
        level = {"none": 0, "optimizer": 1, "gradients": 2, "everything": 3}[parallel.shard]
        each = {"weights": (self.weights, 3), "gradients": (self.gradients, 2), "optimizer": (self.optimizer, 1)}

        def shared(at: int) -> float:
            return (held - experts) / (ranks * parallel.expert) + experts / ranks if level >= at else held

        return {name: round(size * shared(at)) for name, (size, at) in each.items()}

    def blocks(self, recipe: Recipe, model: ModelConfig, rows: Rows) -> list[BlockBytes]:
        """Of each block of a decoder or an encoder."""
        again = isinstance(recipe.parallel.recompute, SelectiveRecompute)
        return _blocks(model, rows, self, again)

    def ends(self, _recipe: Recipe, model: ModelConfig, vocab: int, rows: Rows) -> Ends:
        """Dropout of the embedding; the final norm, the head's input; logits in float32 and their gradient."""
        stream = rows.narrow.stream(model)
        first = rows.narrow.tokens * model.width if model.dropout else 0
        logits = round(self.logit_bytes * rows.tokens * vocab)
        return Ends(first, 0, 2 * stream, logits)

    def communication(self, recipe: Recipe, held: int, largest: int, /) -> tuple[int, int]:
        """Gathered weights of two blocks, and the gradients of one."""
        if recipe.parallel.shard != "everything":
            return 0, 0
        if recipe.parallel.pipeline.stages > 1:  # gathered for all microbatches, whose gradients are summed whole
            size = round((self.gathered + self.gradients) * held)
        else:
            size = round((2 * self.gathered + self.gradients) * largest)
        return size, size

    def runtime(self, recipe: Recipe, /) -> int:
        """As any process on a GPU."""
        return gpu_runtime(recipe)


@kept_by_config
def _blocks(model: ModelConfig, rows: Rows, holding: MixedHolding, again: bool) -> list[BlockBytes]:
    layers = [model.layer(number) for number in range(model.num_blocks)]
    stream = rows.narrow.stream(model)
    sizes = [_Block(layer, rows, holding, again).total for layer in layers]
    return [BlockBytes(size, stream, size) for size in sizes]


@dataclass(frozen=True)
class _Block:
    """What a block keeps; `layer` is a tensor rank's share."""

    layer: ModelConfig
    rows: Rows
    holding: MixedHolding
    again: bool

    @cached_property
    def total(self) -> int:
        """Bytes."""
        if self.again and self.holding.keeps_products:
            return self._products
        return self._around + self._attention + self._mlp

    @property
    def _products(self) -> int:
        """The block's input, what attention gives, and of the products' results every other one: queries, values, the
        gate (or what goes up), and what a gated MLP gives."""
        narrow, tokens, layer = self.rows.narrow.tokens, self.rows.tokens, self.layer
        heads = layer.head_dim * (2 * layer.heads + layer.kv_heads)
        stream = narrow * layer.width * (1 if layer.mlp.kind == "mlp" else 2)
        return ITEM * (stream + tokens * (heads + layer.hidden)) + 4 * tokens * layer.heads

    @property
    def _around(self) -> int:
        """Inputs of norms and of products, and masks of dropout, by bytes."""
        narrow, width = self.rows.narrow.tokens, self.layer.width
        norms = 1 if isinstance(self.layer.block, Parallel) and self.layer.block.shared_norm else 2
        return narrow * width * (2 * norms * ITEM + (2 if self.layer.dropout else 0))

    @property
    def _attention(self) -> int:
        layer, tokens = self.layer, self.rows.tokens
        if isinstance(layer.attention, LatentAttentionConfig):
            part = layer.attention
            latents = 2 * (part.query_rank or 0) + 2 * part.kv_rank + part.rope_dim
            heads = layer.heads * (2 * (part.nope_dim + part.rope_dim) + 2 * part.value_dim)
            return tokens * (ITEM * (latents + heads) + 4 * layer.heads)
        assert isinstance(layer.attention, FullAttentionConfig)
        kept = ITEM * tokens * layer.head_dim * 2 * (layer.heads + layer.kv_heads)
        if not self.holding.stores_scores:
            return kept + 4 * tokens * layer.heads
        mask = 1 if layer.attention.dropout else 0
        scores = (2 * ITEM + mask) * layer.heads * tokens * self.rows.sequence
        return kept + (0 if self.again else scores)

    @property
    def _mlp(self) -> int:
        layer, tokens, part = self.layer, self.rows.tokens, self.layer.mlp
        gated = self.holding.gated_values
        if isinstance(part, ExpertsConfig):
            routed = part.active * (gated * layer.hidden + layer.width)
            return ITEM * tokens * (routed + gated * (part.shared_hidden or 0)) + 8 * tokens * part.count
        return ITEM * tokens * layer.hidden * (2 if part.kind == "mlp" else gated)
