"""Work of a block on one rank: products with weights, attention, bytes through memory. Arithmetic on a configuration.

Times follow the roofline in its additive form: operations over their rate plus bytes over the bandwidth, so that narrow
products, which move more bytes for each operation, are slower.
"""

from dataclasses import dataclass

from hornbook.model.config.attention import FullAttentionConfig
from hornbook.model.config.mlp import ExpertsConfig
from hornbook.model.config.model import ModelConfig
from hornbook.model.config.part import Product, method
from hornbook.plan.rates import Rates

ITEM = 2
"""Bytes of a value of an activation; fp32 has twice as many."""
STREAM_PASSES = 10
"""Values of the residual stream read or written in a block's forward pass, per feature: two norms, two sums."""
FLASH_BACKWARD = 2.5
"""Operations of attention's backward pass over its forward pass: five products of two, with the scores once more."""
SCORE_PASSES = 5.5
"""Times that scores of attention are read or written forward where they are stored: products, softmax, dropout."""
ALIGNED = 8
"""Values to which tensor cores want the inner side of a product: others are computed at half the rate (NVIDIA, Matrix
Multiplication Background User's Guide)."""
CALLS = 20
"""Kernels that a block's forward pass starts."""
HEAD_CALLS = 5
"""The same of the head and the loss."""
EXPERT_CALLS = 8
"""Kernels that it starts besides for each expert that the rank holds: its products, casts and copies."""
GAP_SECONDS = 2e-6
"""Seconds between two kernels on a device."""
START_SECONDS = 8e-6
"""Seconds in which a host starts one: a device is never faster than it."""


@dataclass(frozen=True)
class Work:
    """Forward work of a microbatch: operations and bytes; and what backward has of it."""

    products: float = 0.0
    """Operations of products with weights; backward has twice as many."""
    wide: float = 0.0
    """Of these, products that are computed in 16 bits whatever `train.precision` is."""
    attention: float = 0.0
    """Operations of attention besides."""
    moved: float = 0.0
    """Bytes through memory; backward moves twice as many."""
    calls: float = 0.0
    """Kernels."""
    casts: float = 0.0
    """Bytes of values on their way to 8 bits, where products want them."""
    weights: float = 0.0
    """Values whose gradient backward adds to that of the microbatches before."""

    def __add__(self, other: "Work") -> "Work":
        names = ("products", "wide", "attention", "moved", "calls", "casts", "weights")
        return Work(*(getattr(self, name) + getattr(other, name) for name in names))

    def forward(self, rates: Rates) -> float:
        """Seconds."""
        return self._seconds(rates, 1.0, 1.0)

    def backward(self, rates: Rates, gradient: float = 4.0) -> float:
        """Seconds, without what is computed again. gradient: bytes of a value that microbatches are summed in."""
        return self._seconds(rates, 2.0, FLASH_BACKWARD) + self.weights * (2 * gradient - ITEM) / rates.bandwidth

    def _seconds(self, rates: Rates, times: float, attention: float) -> float:
        products = (self.products - self.wide) / rates.products + self.wide / rates.wide
        moved = (self.moved + (self.casts if rates.narrow else 0.0)) / rates.bandwidth
        device = times * (products + moved + GAP_SECONDS * self.calls) + attention * self.attention / rates.attention
        return max(device, times * START_SECONDS * self.calls)


def block_work(layer: ModelConfig, tokens: int, item: int, stream_ranks: int, attention: Work) -> Work:
    """Of one block for `tokens` tokens; `layer` is the rank's share of it.

    item: bytes of a value. stream_ranks: tensor ranks that divide the stream. attention: of its pairs.
    """
    held = layer.mlp.count if isinstance(layer.mlp, ExpertsConfig) else 0
    moved = item * tokens * STREAM_PASSES * layer.width / stream_ranks + item * tokens * _inner_values(layer)
    work = attention + Work(moved=moved, calls=CALLS + EXPERT_CALLS * held)
    for part in (layer.attention, layer.mlp):
        for matrix in method(part, "products")(layer):
            work += product_work(matrix, tokens, item)
    return work


def attention_work(layer: ModelConfig, tokens: int, sequence: int, item: int, *, stored: bool = False) -> Work:
    """Of the pairs of query and key of `tokens` queries; stored: all scores of a row go through memory."""
    seen, every = method(layer.attention, "attention_flops")(layer, sequence)
    if not stored:
        return Work(attention=tokens * seen / 3)
    half = 1 if layer.head_dim % ALIGNED == 0 else 2
    scores = item * tokens * sequence * layer.heads
    return Work(products=half * tokens * every / 3, moved=SCORE_PASSES * scores)


def _inner_values(layer: ModelConfig) -> float:
    """Values read or written per token between products: rotations, activations, dispatch to experts."""
    heads = 0
    if isinstance(layer.attention, FullAttentionConfig):
        heads = 2 * layer.head_dim * (layer.heads + layer.kv_heads)
    if isinstance(layer.mlp, ExpertsConfig):
        return heads + layer.mlp.active * (3 * layer.hidden + 4 * layer.width)
    return heads + (2 if layer.mlp.kind == "mlp" else 3) * layer.hidden


def product_work(matrix: Product, tokens: int, item: int, *, wide: bool = False) -> Work:
    """Of a product of each token with a matrix."""
    flops = 2.0 * tokens * matrix.inner * matrix.columns * matrix.uses
    weights = matrix.inner * matrix.columns * max(matrix.experts, 1)
    moved = item * (tokens * matrix.uses * (matrix.inner + matrix.columns) + weights)
    casts = 0.0 if wide else ITEM * tokens * matrix.uses * matrix.inner
    return Work(flops, flops if wide else 0.0, 0.0, moved, casts=casts, weights=weights)


def head_work(model: ModelConfig, vocab: int, tokens: int, item: int) -> Work:
    """Of the head and the loss; `vocab` is the rank's share."""
    width = model.embedding.width or model.width
    logits = tokens * vocab
    own = product_work(Product(width, vocab), tokens, item, wide=True)
    extra = max(model.head.num_matmul_weights(model, vocab) - width * vocab, 0)
    return own + Work(products=2.0 * tokens * extra, moved=float(2 * item * logits + 4 * logits), calls=HEAD_CALLS)
