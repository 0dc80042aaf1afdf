"""Work of a block on one rank: products with weights, attention, bytes through memory. Arithmetic on a configuration.

Times follow the roofline kernel by kernel: a product takes its operations or its bytes, whichever are longer; what is
between products adds its bytes.
"""

from dataclasses import dataclass, replace
from functools import cache
from math import ceil

from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.mlp_config import ExpertsConfig
from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.part import Product, method
from hornbook.plan.counts.adapted import Adapted
from hornbook.plan.devices.device_rates import Rates

ITEM = 2
"""Bytes of a value of an activation; fp32 has twice as many."""
STREAM_PASSES = 10
"""Values of the residual stream read or written in a block's forward pass, per feature: two norms, two sums."""
FLASH_BACKWARD = 2.5
"""Operations of attention's backward pass over its forward pass: five products of two, with the scores once more."""
SCORE_PASSES = 5.0
"""Times that scores of attention are read or written forward where they are stored: products, softmax, dropout."""
ALIGNED = 8
"""Values to which tensor cores want the inner side of a product (NVIDIA, Matrix Multiplication guide); vector units
compute others, in fp32: BLOOM's search measured steps 30 to 40 % longer for heads of 108 than for other ones."""
DEPTH = 192
"""Values along the inner side in whose time a tile is begun and written."""
CALLS = 20
"""Kernels that a block's forward pass starts."""
ADAPTER_CALLS = 4
"""The same of a low-rank update: two products, a scale, a sum."""
HEAD_CALLS = 5
"""The same of the head and the loss."""
CAST_BYTES = 3
"""Bytes read and written to bring a value to 8 bits for a product."""
START_SECONDS = 8e-6
"""Seconds in which a host starts one: a device is never faster than it."""


TILES = ((256, 128, 1.0), (128, 256, 1.0), (128, 128, 0.92), (64, 128, 0.75))
"""Rows and columns of a product's result that one unit of a device computes at a time, and their rate over the best."""
SPLIT_RATE = 0.5
"""Rate of a product of few tiles, which is cut along its inner side, over the best."""


# ---- A CPU, by `python -m benchmarks.plan.runs`

BYTE_OPERATIONS = 22.0
"""Operations that a CPU would do in products while it reads or writes a byte between them: in its caches, where what is
computed for each value binds it, not memory."""
WEIGHT_BYTES = 10.0
"""Bytes that it moves for each weight of a microbatch: the weight, its cast, the sum of its gradient."""
STEP_OPERATIONS = 1e9
"""Operations that it would do during what a step has beside microbatches: the batch, clipping, records."""
START_OPERATIONS = 4.6e6
"""The same while it starts a kernel: 45 us at 100 GFLOP/s."""


@dataclass(frozen=True)
class Multiply:
    """A product with weights of a microbatch: `rows` by `inner`, times `inner` by `columns`, `count` of them."""

    rows: float
    inner: int
    columns: int
    count: int = 1
    wide: bool = False
    """Computed in 16 bits whatever `train.precision` is."""

    @property
    def flops(self) -> float:
        """Forward; backward has twice as many."""
        return 2.0 * self.rows * self.inner * self.columns * self.count

    @property
    def weights(self) -> float:
        """Values."""
        return float(self.inner * self.columns * self.count)

    def forward(self, rates: Rates, item: int) -> float:
        """Seconds: operations or bytes, whichever take longer, since a kernel does both at once."""
        moved = item * (self.count * self.rows * (self.inner + self.columns) + self.weights)
        return max(self._busy(rates, self.rows, self.columns, self.inner), moved / rates.bandwidth)

    def backward(self, rates: Rates, item: int, gradient: float | None) -> float:
        """Seconds, of both products; the weights' gradient is added to what microbatches before have summed. None:
        weights are frozen, and have none."""
        if gradient is None:
            return replace(self, inner=self.columns, columns=self.inner).forward(rates, item)
        moved = 2 * item * self.count * self.rows * (self.inner + self.columns)
        moved += self.weights * (item + 2 * gradient)
        busy = self._busy(rates, self.rows, self.inner, self.columns)
        busy += self._busy(rates, self.inner, self.columns, self.rows)
        return max(busy, moved / rates.bandwidth)

    def _busy(self, rates: Rates, rows: float, columns: float, inner: float) -> float:
        share = filled(rows, columns, self.count, rates.units)
        if rates.units:
            share *= inner / (inner + DEPTH)
        return self.flops / (rates.wide if self.wide else rates.products) / share


@cache
def filled(rows: float, columns: float, count: int, units: int) -> float:
    """Share of a device's units that a product keeps busy: they take its tiles in waves, of which the last is not full
    (NVIDIA, Matrix Multiplication Background User's Guide). units: 0 where there are no such waves."""
    if not units:
        return 1.0
    found = SPLIT_RATE
    for high, broad, rate in TILES:
        tiles = count * ceil(rows / high) * ceil(columns / broad)
        done = count * rows * columns / (high * broad)
        found = max(found, rate * done / (ceil(tiles / units) * units))
    return found


@dataclass(frozen=True)
class Work:
    """Forward work of a microbatch: products, other operations and bytes; and what backward has of it."""

    multiplies: tuple[Multiply, ...] = ()
    plain: float = 0.0
    """Operations of products of activations with one another; backward has twice as many."""
    unaligned: float = 0.0
    """The same of those that vector units compute (`ALIGNED`)."""
    attention: float = 0.0
    """Operations of a fused attention."""
    moved: float = 0.0
    """Bytes through memory beside products; backward moves twice as many."""
    calls: float = 0.0
    """Kernels."""

    def __add__(self, other: "Work") -> "Work":
        names = ("multiplies", "plain", "unaligned", "attention", "moved", "calls")
        return Work(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def products(self) -> float:
        """Operations of products."""
        return self.plain + self.unaligned + sum(each.flops for each in self.multiplies)

    def forward(self, rates: Rates, item: int = ITEM) -> float:
        """Seconds. item: bytes of a value."""
        if rates.core:
            return self._on_cpu(rates, 1.0, 1.0)
        products = sum(each.forward(rates, item) for each in self.multiplies)
        return self._seconds(rates, 1.0, 1.0, products)

    def backward(self, rates: Rates, item: int = ITEM, gradient: float | None = 4.0) -> float:
        """Seconds, without what is computed again. gradient: bytes of a value that microbatches are summed in, None
        where weights are frozen."""
        if rates.core:
            if gradient is None:
                spared = sum(each.flops for each in self.multiplies) / rates.products
                return self._on_cpu(rates, 2.0, FLASH_BACKWARD) - spared
            passed = WEIGHT_BYTES * sum(each.weights for each in self.multiplies)
            return self._on_cpu(rates, 2.0, FLASH_BACKWARD) + passed / rates.bandwidth
        products = sum(each.backward(rates, item, gradient) for each in self.multiplies)
        return self._seconds(rates, 2.0, FLASH_BACKWARD, products)

    def _seconds(self, rates: Rates, times: float, attention: float, products: float) -> float:
        casts = 0.0
        if rates.narrow:
            casts = CAST_BYTES * sum(each.count * each.rows * each.inner for each in self.multiplies if not each.wide)
        beside = (
            self.plain / rates.wide
            + self.unaligned / rates.vector
            + (self.moved + casts) / rates.bandwidth
            + rates.gap * self.calls
        )
        device = products + times * beside + attention * self.attention / rates.attention
        return max(device, times * START_SECONDS * self.calls)

    def _on_cpu(self, rates: Rates, times: float, attention: float) -> float:
        """One thing after the other: nothing of it is hidden."""
        beside = (BYTE_OPERATIONS * self.moved + START_OPERATIONS * self.calls) / rates.core
        return times * (self.products / rates.products + beside) + attention * self.attention / rates.attention


def block_work(
    layer: ModelConfig, tokens: int, item: int, stream_ranks: int, attention: Work, expert_calls: int = 0
) -> Work:
    """Of one block for `tokens` tokens; `layer` is the rank's share of it.

    item: bytes of a value. stream_ranks: tensor ranks that divide the stream. attention: of its pairs. expert_calls:
    kernels of each expert beside those of a block.
    """
    held = layer.mlp.count if isinstance(layer.mlp, ExpertsConfig) else 0
    moved = item * tokens * STREAM_PASSES * layer.width / stream_ranks + item * tokens * _inner_values(layer)
    work = attention + Work(moved=moved, calls=CALLS + expert_calls * held)
    for part in (layer.attention, layer.mlp):
        for matrix in method(part, "products")(layer):
            work += Work((multiply(matrix, tokens),))
    return work


def adapter_work(adapters: Adapted, blocks: int, tokens: int, item: int) -> Work:
    """Of the low-rank updates of one of `blocks` blocks: two products with what is trained; an input is read, a result
    written, scaled and added."""
    operations, moved = 2.0 * tokens * adapters.added, 2.0 * item * tokens * adapters.around
    return Work(plain=operations / blocks, moved=moved / blocks, calls=ADAPTER_CALLS * adapters.updated / blocks)


def attention_work(layer: ModelConfig, tokens: int, sequence: int, item: int, *, stored: bool = False) -> Work:
    """Of the pairs of query and key of `tokens` queries; stored: all scores of a row go through memory."""
    seen, every = method(layer.attention, "attention_flops")(layer, sequence)
    if not stored:
        return Work(attention=tokens * seen / 3)
    moved = SCORE_PASSES * item * tokens * sequence * layer.heads
    operations = tokens * every / 3
    if layer.head_dim % ALIGNED:
        return Work(unaligned=operations, moved=moved)
    return Work(plain=operations, moved=moved)


def _inner_values(layer: ModelConfig) -> float:
    """Values read or written per token between products: rotations, activations, dispatch to experts."""
    heads = 0
    if isinstance(layer.attention, FullAttentionConfig):
        heads = 2 * layer.head_dim * (layer.heads + layer.kv_heads)
    if isinstance(layer.mlp, ExpertsConfig):
        return heads + layer.mlp.active * (3 * layer.hidden + 4 * layer.width)
    return heads + (2 if layer.mlp.kind == "mlp" else 3) * layer.hidden


def multiply(matrix: Product, tokens: int) -> Multiply:
    """Of a product of each token with a matrix; experts share the tokens evenly."""
    count = max(matrix.experts, 1)
    return Multiply(tokens * matrix.uses / count, matrix.inner, matrix.columns, count)


def head_work(
    model: ModelConfig, vocab: int, tokens: int, item: int, *, stream_ranks: int = 1, cached: bool = False
) -> Work:
    """Of the heads, their losses, and what stands before blocks of multi-token prediction; `vocab` is the rank's share.

    stream_ranks: as of `block_work`. cached: a chunk of logits stays in a CPU's caches.
    """
    width, outputs = model.embedding.width or model.width, model.head.num_outputs(vocab)
    logits = tokens * outputs
    found = [Multiply(tokens, width, outputs, wide=True)]
    if (extra := model.head.num_matmul_weights(model, vocab) - width * outputs) > 0:
        found.append(Multiply(tokens, width, -(-extra // width)))
    times = 1 + model.mtp.depth
    joins = tuple(multiply(each, -(-tokens // stream_ranks)) for each in model.mtp.products(model))
    moved = 0.0 if cached else float(2 * item * logits + 4 * logits)
    return Work((*times * found, *joins), moved=times * moved, calls=times * HEAD_CALLS)
