"""What training costs: operations per token, bytes of state. Arithmetic on a configuration, without building it.

Operations are those of the model, forward and backward, where backward is twice forward. A product with a matrix is
two operations per weight, so a token costs 6 N: N are the weights it is multiplied by, the head included (at every
position), the lookup of the embedding not, and of experts the active ones. Attention is what scores and their weighted
sum of values cost over the pairs of query and key that see each other, in a row that is one document; `all_pairs`
counts every pair of the row in every layer, as PaLM does (arXiv 2204.02311, appendix B: 12 L H d s). Norms,
activations, convolutions and what is computed again for lack of memory are not counted.
"""

from dataclasses import dataclass

from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import stacks_of
from hornbook.model.config.part import method
from hornbook.optim.config.optimizer_config import OptimizerConfig
from hornbook.parallel.config import BlockRecompute, NoRecompute, ParallelConfig, Recompute

FLOAT32 = 4
"""Bytes of a number; weights and gradients are float32 under every `train.precision`."""
NO_RECOMPUTE = NoRecompute()
SCORING_COST = 0.35
"""Measured time to score a token, as a share of the time to train on it."""


@dataclass(frozen=True)
class Operations:
    """Floating-point operations of one token, forward and backward."""

    weights: int
    """Weights it is multiplied by."""
    attention: float
    """Operations of attention over pairs that see each other."""
    all_pairs: float
    """The same over all pairs."""

    def __add__(self, other: "Operations") -> "Operations":
        attention, all_pairs = self.attention + other.attention, self.all_pairs + other.all_pairs
        return Operations(self.weights + other.weights, attention, all_pairs)

    def __rmul__(self, count: int) -> "Operations":
        return Operations(count * self.weights, count * self.attention, count * self.all_pairs)

    @property
    def matrices(self) -> int:
        """Operations of products with matrices."""
        return 6 * self.weights

    @property
    def total(self) -> float:
        """All of them."""
        return self.matrices + self.attention


def operations_per_token(model: ModelConfig, vocab: int, sequence: int) -> dict[str, Operations]:
    """By what the token is: `token`, or of an encoder-decoder `source token` and `target token`.

    vocab: rows of the embedding; sequence: tokens of a row, of an encoder-decoder on either side.
    """
    inputs = Operations(model.embedding.num_matmul_weights(model), 0, 0)
    head = Operations(_head_weights(model, vocab), 0, 0)
    stacks = [_stack(stack, sequence) + inputs for stack in stacks_of(model)]
    if len(stacks) == 1:
        return {"token": stacks[0] + _generator(model, sequence) + head}
    memory, cross = _cross(model, sequence)
    return {"source token": stacks[1] + memory, "target token": stacks[0] + cross + head}


@dataclass(frozen=True)
class StepOperations:
    """Operations of some positions, by the conventions in which others publish theirs; all forward and backward."""

    causal: float
    """Products with matrices, the head's among them, and attention over the pairs that see each other: the default."""
    palm: float
    """The same with all pairs of a row (12 L H d s a token, arXiv 2204.02311 appendix B; also torchtitan, nanochat)."""
    matrices: float
    """Products with matrices alone: 6 N, N without the lookup of the embedding."""
    without_head: float
    """`causal` without the head."""
    recomputed: float
    """`causal`, and what `parallel.recompute` computes a second time: the operations of the hardware (HFU)."""


def step_operations(
    model: ModelConfig, vocab: int, sequence: int, positions: tuple[int, int], recompute: Recompute = NO_RECOMPUTE
) -> StepOperations:
    """Operations of `positions` (of the model, of its encoder) in rows of `sequence`.

    vocab: rows of the embedding. recompute: what runs forward twice costs a third more; products of matrices do
    so in whole blocks alone.
    """
    kinds = operations_per_token(model, vocab, sequence)
    counts = dict(zip(kinds, reversed(positions) if len(kinds) > 1 else positions, strict=False))
    total = sum((counts[kind] * each for kind, each in kinds.items()), Operations(0, 0, 0))
    ends = positions[0] * _head_weights(model, vocab)
    outside = ends + sum(counts.values()) * model.embedding.num_matmul_weights(model)
    twice = -(-model.num_blocks // recompute.every) / model.num_blocks if isinstance(recompute, BlockRecompute) else 0.0
    again = twice * (total.total - 6 * outside) / 3
    palm = total.matrices + total.all_pairs
    return StepOperations(total.total, palm, total.matrices, total.total - 6 * ends, total.total + again)


def block_costs(model: ModelConfig, vocab: int, sequence: int) -> tuple[list[float], float]:
    """Operations of a position (of an encoder-decoder, of either side) in each block, the encoder's first; and in the
    head, with blocks of multi-token prediction, which are where it is."""
    decoder, *encoder = [
        [_layer(stack.layer(i), sequence).total for i in range(stack.layers)] for stack in stacks_of(model)
    ]
    if encoder:
        crossing = sum((each.total for each in _cross(model, sequence)), 0.0) / model.layers
        decoder = [each + crossing for each in decoder]
    head = Operations(_head_weights(model, vocab), 0, 0)
    further = sum(_layer(model.layer(i), sequence).total for i in range(model.layers, model.num_blocks))
    return [*(each for costs in encoder for each in costs), *decoder], float(head.matrices) + further


def _head_weights(model: ModelConfig, vocab: int) -> int:
    """Weights of the heads, once for each token that is predicted, and of what stands before further blocks."""
    weights = (1 + model.mtp.depth) * model.head.num_matmul_weights(model, vocab)
    weights += sum(each.weights for each in model.mtp.products(model))
    generator = model.head.generator_of(model)
    return weights if generator is None else weights + generator.head.num_matmul_weights(generator, vocab)


def _generator(model: ModelConfig, sequence: int) -> Operations:
    """Of the generator of replaced-token detection, but for its head."""
    generator = model.head.generator_of(model)
    if generator is None:
        return Operations(0, 0, 0)
    return _stack(generator, sequence) + Operations(generator.embedding.num_matmul_weights(generator), 0, 0)


def _stack(stack: ModelConfig, sequence: int) -> Operations:
    layers = (stack.layer(i) for i in range(stack.num_blocks))
    return sum((_layer(layer, sequence) for layer in layers), Operations(0, 0, 0))


def _layer(layer: ModelConfig, sequence: int) -> Operations:
    weights = sum(method(part, "num_matmul_weights")(layer) for part in (layer.attention, layer.mlp))
    return Operations(weights, *method(layer.attention, "attention_flops")(layer, sequence))


def _cross(model: ModelConfig, sequence: int) -> tuple[Operations, Operations]:
    """Attention to the encoder: (what a source token costs as key and value, what a target token costs)."""
    layers = [model.layer(i) for i in range(model.layers)]
    memory = sum(2 * layer.width * layer.kv_heads * layer.head_dim for layer in layers)
    weights = sum(layer.attention.num_matmul_weights(layer) for layer in layers)
    pairs = sum(layer.attention.attention_flops(layer, sequence)[1] for layer in layers)
    return Operations(memory, 0, 0), Operations(weights - memory, pairs, pairs)


def state_bytes(
    parameters: int,
    parallel: ParallelConfig,
    optim: OptimizerConfig,
    item_bytes: int = FLOAT32,
    moments: int | None = None,
) -> dict[str, int]:
    """Bytes each process holds of weights and gradients, each `item_bytes` per value, and of the optimizer's moments,
    with no parameter frozen, between two microbatches of a step.

    parameters: what it would hold if data ranks shared nothing (`hornbook.plan.counts.held_counts.held_values`). Where
    moments are sharded and weights are not, the rank's share of the weights is held beside the whole ones: it is what
    the optimizer updates. moments: bytes of them before they are sharded; by default about what the optimizer says of
    a model of that size.
    """
    cut = {"none": 0, "optimizer": 1, "gradients": 2, "everything": 3}[parallel.shard]
    group = parallel.data // parallel.replicas
    weights, narrow = item_bytes * parameters, item_bytes != FLOAT32
    if moments is None:
        moments = optim.state_bytes(parameters, item_bytes) if narrow else optim.model_state_bytes(parameters)
    sizes = {"moments": moments, "gradients": weights, "weights": weights}  # as they are sharded
    shares = {name: group if number < cut else 1 for number, name in enumerate(sizes)}
    found = {name: -(-size // shares[name]) for name, size in reversed(sizes.items())}
    found["weights"] += -(-weights // group) if cut in (1, 2) else 0
    return found
