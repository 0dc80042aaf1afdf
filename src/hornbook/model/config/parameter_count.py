"""How many parameters a model has: arithmetic on its configuration, without building it."""

from collections.abc import Callable

from hornbook.model.config import head as config_head
from hornbook.model.config import mlp as config_mlp
from hornbook.model.config import model as parts
from hornbook.model.config import position as config_position
from hornbook.model.config.model import ModelConfig


def count_parameters(config: ModelConfig, vocab: int) -> int:
    """Number of trained values of the model; `vocab` is the rows of its embedding."""
    return sum(parameter_counts(config, vocab).values())


def parameter_counts(config: ModelConfig, vocab: int) -> dict[str, int]:
    """Parameters by part, over all layers and both stacks: embedding, positions, attention, mlp, norms, head."""
    stacks = stacks_of(config)
    looking = [config] if len(stacks) > 1 else []  # each layer of the decoder has attention to the encoder besides
    return {
        "embedding": sum(_entrance(stack) for stack in stacks) + vocab * _vector_width(config),
        "positions": sum(_positions(stack) for stack in stacks),
        "attention": _over_layers([*stacks, *looking], _attention),
        "mlp": _over_layers(stacks, _mlp),
        "norms": sum(_norms(config, stack, crossed=stack is config and len(stacks) > 1) for stack in stacks),
        "head": _head(config, vocab),
    }


def stacks_of(config: ModelConfig) -> list[ModelConfig]:
    """The stack that the head reads, then the encoder it attends to, if any."""
    return [config, config.encoder] if config.kind == "encoder_decoder" else [config]


def _over_layers(stacks: list[ModelConfig], count: Callable[[ModelConfig], int]) -> int:
    return sum(count(stack.layer(i)) for stack in stacks for i in range(stack.layers))


# ---- Ends


def _vector_width(config: ModelConfig) -> int:
    return config.embedding.width or config.width


def entrance_matrices(config: ModelConfig) -> int:
    """Weights between the embedding's vectors and the stream."""
    return config.embedding.width * config.width if config.embedding.width else 0


def _entrance(stack: ModelConfig) -> int:
    return entrance_matrices(stack) + stack.embedding.types * stack.width


def _positions(stack: ModelConfig) -> int:
    match stack.position:
        case config_position.LearnedPositions() as part:
            return (part.length + part.offset) * stack.width
        case config_position.RelativeBuckets() as part:
            return part.buckets * stack.heads
    return 0


def head_matrices(config: ModelConfig, vocab: int) -> int:
    """Weights that a position of the stream is multiplied by on its way to logits, shared with the embedding or not."""
    if isinstance(config.head, config_head.LabelHeadConfig):
        dense = config.head.transform.kind == "dense"
        return config.width * (config_head.num_outputs(config.head) + dense * config.width)
    before = config.width**2 if isinstance(config.head, config_head.MaskedHead) else entrance_matrices(config)
    return vocab * _vector_width(config) + before


def _head(config: ModelConfig, vocab: int) -> int:
    part = config.head
    if isinstance(part, config_head.LabelHeadConfig):
        return head_matrices(config, vocab) + _label_vectors(config, part)
    shared = vocab * _vector_width(config) if part.tied else 0
    count = head_matrices(config, vocab) - shared + part.bias * vocab
    if isinstance(part, config_head.MaskedHead):
        return count + part.dense_bias * config.width + _norm(config, config.norm)
    return count


def _label_vectors(config: ModelConfig, part: config_head.LabelHeadConfig) -> int:
    """Biases, and the norm of what is done first."""
    count, dense = part.bias * config_head.num_outputs(part), part.transform
    if not isinstance(dense, config_head.DenseTransform):
        return count
    return count + dense.bias * config.width + (_norm(config, config.norm) if dense.norm else 0)


def embedding_rows(config: ModelConfig, tokenizer_size: int) -> int:
    """Rows of the embedding: as configured, else the tokenizer's size rounded up to a multiple of 64."""
    return config.vocab or -(-tokenizer_size // 64) * 64


# ---- Attention


def _attention(config: ModelConfig) -> int:
    return attention_matrices(config) + _attention_vectors(config)


def attention_matrices(config: ModelConfig) -> int:
    """Weights of a layer's attention that a position is multiplied by; `config` is as that layer sees it."""
    match config.attention:
        case parts.FullAttention():
            return config.width * config.head_dim * 2 * (config.heads + config.kv_heads)
        case parts.LatentAttention() as part:
            return _latent_matrices(config, part)
        case parts.DeltaAttention() as part:
            key, value = delta_widths(config, part)
            return config.width * (2 * key + 3 * value + 2 * (part.value_heads or config.heads))
    return config.attention.num_parameters(config)  # a part from outside counts itself


def _latent_matrices(config: ModelConfig, part: parts.LatentAttention) -> int:
    queries = config.heads * (part.nope_dim + part.rope_dim)
    query = config.width * queries if part.query_rank is None else part.query_rank * (config.width + queries)
    down = config.width * (part.kv_rank + part.rope_dim)
    up = part.kv_rank * config.heads * (part.nope_dim + part.value_dim)
    return query + down + up + config.heads * part.value_dim * config.width


def delta_widths(config: ModelConfig, part: parts.DeltaAttention) -> tuple[int, int]:
    """(width of all keys, width of all values)."""
    head = config.width // config.heads
    keys, values = part.key_heads or config.heads, part.value_heads or config.heads
    return keys * (part.key_dim or head), values * (part.value_dim or head)


def _attention_vectors(config: ModelConfig) -> int:
    """Biases, norms, sinks, and the convolutions of DeltaNet."""
    match config.attention:
        case parts.FullAttention() as part:
            queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
            biases = part.bias * (queries + 2 * keys) + part.out_bias * config.width
            norms = {"none": 0, "head": 2 * config.head_dim, "full": queries + keys}[part.qk_norm]
            return biases + norms + part.sinks * config.heads
        case parts.LatentAttention() as part:
            query = (1 + part.bias) * (part.query_rank or 0)
            return query + part.bias * (part.kv_rank + part.rope_dim + config.width) + part.kv_rank
        case parts.DeltaAttention() as part:
            key, value = delta_widths(config, part)
            heads = part.value_heads or config.heads
            return part.convolution * (2 * key + value) + 2 * heads + (part.value_dim or config.width // config.heads)
    return 0


# ---- Feed-forward


def _mlp(config: ModelConfig) -> int:
    match config.mlp:
        case config_mlp.MLP() as part:
            biases = part.bias * (config.hidden + config.width)
        case config_mlp.GLU() as part:
            biases = part.bias * (2 * config.hidden + config.width)
        case _:
            biases = 0
    return mlp_matrices(config) + biases


def mlp_matrices(config: ModelConfig, *, active: bool = False) -> int:
    """Weights of a layer's MLP; `active`: of experts only those that one position is multiplied by."""
    width, hidden = config.width, config.hidden
    match config.mlp:
        case config_mlp.MLP():
            return 2 * width * hidden
        case config_mlp.GLU():
            return 3 * width * hidden
        case config_mlp.Experts() as part:
            experts = part.active if active else part.count
            return width * (3 * hidden * experts + part.count + 3 * (part.shared_hidden or 0))
    return config.mlp.num_parameters(config)


# ---- Norms


def _norms(config: ModelConfig, stack: ModelConfig, crossed: bool) -> int:
    each = _norm(config, config.norm)
    ends = (stack.final_norm + stack.embedding.norm) * each
    if isinstance(stack.block, parts.Parallel):
        return ends + stack.layers * (1 if stack.block.shared_norm else 2) * each
    attention = sum(_norm(config, stack.attention_norm(i)) for i in range(stack.layers))
    others = stack.layers * (2 if crossed else 1) * each
    return ends + (2 if isinstance(stack.block, parts.SandwichNorm) else 1) * (attention + others)


def _norm(config: ModelConfig, part: parts.NormConfig) -> int:
    match part:
        case parts.NoNorm():
            return 0
        case parts.BatchNorm() | parts.LayerNorm(bias=True):
            return 2 * config.width
        case parts.LayerNorm() | parts.RMSNorm() | parts.OffsetRMSNorm():
            return config.width
    return part.num_parameters(config)
