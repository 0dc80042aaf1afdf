"""What training costs: operations per token, bytes of state. Arithmetic on a configuration, without building it.

Operations are those of the model, forward and backward, where backward is twice forward. A product with a matrix is
two operations per weight, so a token costs 6 N: N are the weights it is multiplied by, the head included (at every
position), the lookup of the embedding not, and of experts the active ones. Attention is what scores and their weighted
sum of values cost over the pairs of query and key that see each other, in a row that is one document; `all_pairs`
counts every pair of the row in every layer, as PaLM does (arXiv 2204.02311, appendix B: 12 L H d s). Norms,
activations, convolutions and what is computed again for lack of memory are not counted.
"""

from dataclasses import dataclass

from hornbook.model.config import model as parts
from hornbook.model.config.model import ModelConfig
from hornbook.model.config.parameter_count import (
    attention_matrices,
    delta_widths,
    entrance_matrices,
    head_matrices,
    mlp_matrices,
    stacks_of,
)
from hornbook.parallel.config import ParallelConfig

FLOAT32 = 4
"""Bytes of a number; weights, gradients and moments are float32 under every `train.precision`."""


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
    entrance = Operations(entrance_matrices(model), 0, 0)
    head = Operations(head_matrices(model, vocab), 0, 0)
    stacks = [_stack(stack, sequence) + entrance for stack in stacks_of(model)]
    if len(stacks) == 1:
        return {"token": stacks[0] + head}
    memory, looking = _cross(model, sequence)
    return {"source token": stacks[1] + memory, "target token": stacks[0] + looking + head}


def _stack(stack: ModelConfig, sequence: int) -> Operations:
    layers = (stack.layer(i) for i in range(stack.layers))
    return sum((_layer(layer, sequence) for layer in layers), Operations(0, 0, 0))


def _layer(layer: ModelConfig, sequence: int) -> Operations:
    weights = attention_matrices(layer) + mlp_matrices(layer, active=True)
    if isinstance(layer.attention, parts.DeltaAttention):
        recurrence = _recurrence(layer, layer.attention)
        return Operations(weights, recurrence, recurrence)
    window = layer.attention.window if isinstance(layer.attention, parts.FullAttention) else None
    keys = keys_seen(sequence, window, both=layer.kind == "encoder")
    return Operations(weights, _pair(layer) * keys, _pair(layer) * sequence)


def keys_seen(sequence: int, window: int | None, *, both: bool) -> float:
    """Keys that a query sees, in the mean over a row; both: those behind it too, half of the window on each side."""
    if not both:
        window = min(window or sequence, sequence)
        return window - window * (window - 1) / (2 * sequence)
    if window is None:
        return sequence
    half = min(window // 2, sequence - 1)
    return 1 + 2 * half - half * (half + 1) / sequence


def _pair(layer: ModelConfig) -> int:
    """Operations for one query and one key in all heads: a score and its share of the sum, three times."""
    match layer.attention:
        case parts.FullAttention():
            return 12 * layer.heads * layer.head_dim
        case parts.LatentAttention() as part:
            return 6 * layer.heads * (part.nope_dim + part.rope_dim + part.value_dim)
    return 0  # what a part from outside does with pairs is not known


def _recurrence(layer: ModelConfig, part: parts.DeltaAttention) -> int:
    """Each value head reads its state [key, value] by key and by query and adds an outer product to it."""
    _, values = delta_widths(layer, part)
    return 3 * 6 * values * (part.key_dim or layer.width // layer.heads)


def _cross(model: ModelConfig, sequence: int) -> tuple[Operations, Operations]:
    """Attention to the encoder: (what a source token costs as key and value, what a target token costs)."""
    layers = [model.layer(i) for i in range(model.layers)]
    memory = sum(2 * layer.width * layer.kv_heads * layer.head_dim for layer in layers)
    pairs = sum(_pair(layer) for layer in layers) * sequence
    looking = sum(attention_matrices(layer) for layer in layers) - memory
    return Operations(memory, 0, 0), Operations(looking, pairs, pairs)


def state_bytes(parameters: int, parallel: ParallelConfig) -> dict[str, int]:
    """Bytes each process holds of weights, gradients and AdamW's moments, with no parameter frozen."""
    cut = {"none": 0, "optimizer": 1, "gradients": 2, "everything": 3}[parallel.shard]
    group = parallel.data // parallel.replicas
    sizes = {"moments": 2 * FLOAT32, "gradients": FLOAT32, "weights": FLOAT32}  # in the order in which they are cut
    shares = {name: group if number < cut else 1 for number, name in enumerate(sizes)}
    return {name: -(-parameters * size // shares[name]) for name, size in reversed(sizes.items())}
