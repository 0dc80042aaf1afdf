"""How many parameters a model has: arithmetic on its configuration, without building it."""

from collections.abc import Callable

from hornbook.model import config as parts
from hornbook.model.config import ModelConfig


def count_parameters(config: ModelConfig, vocab: int) -> int:
    """Number of trained values of the model; `vocab` is the rows of its embedding."""
    return sum(parameter_counts(config, vocab).values())


def parameter_counts(config: ModelConfig, vocab: int) -> dict[str, int]:
    """Parameters by part, over all layers and both stacks: embedding, positions, attention, mlp, norms, head."""
    stacks = [config, config.encoder] if config.kind == "encoder_decoder" else [config]
    return {
        "embedding": _embedding(config, vocab),
        "positions": sum(_positions(stack) for stack in stacks),
        "attention": _over_layers(stacks, _attention) + len(stacks[1:]) * config.layers * _attention(config),
        "mlp": _over_layers(stacks, _mlp),
        "norms": sum(_norms(config, stack, crossed=stack is config and len(stacks) > 1) for stack in stacks),
        "head": _head(config, vocab),
    }


def _over_layers(stacks: list[ModelConfig], count: Callable[[ModelConfig], int]) -> int:
    return sum(count(stack.layer(i)) for stack in stacks for i in range(stack.layers))


def _embedding(config: ModelConfig, vocab: int) -> int:
    part = config.embedding
    vectors = vocab * (part.width or config.width) + part.types * config.width
    return vectors + (part.width * config.width if part.width else 0)


def _positions(stack: ModelConfig) -> int:
    match stack.position:
        case parts.LearnedPositions() as part:
            return (part.length + part.offset) * stack.width
        case parts.RelativeBuckets() as part:
            return part.buckets * stack.heads
    return 0


def _attention(config: ModelConfig) -> int:
    match config.attention:
        case parts.FullAttention() as part:
            return _full(config, part)
        case parts.LatentAttention() as part:
            return _latent(config, part)
        case parts.DeltaAttention() as part:
            return _delta(config, part)
    return config.attention.num_parameters(config)  # a part from outside counts itself


def _full(config: ModelConfig, part: parts.FullAttention) -> int:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    matrices = config.width * (queries + 2 * keys) + queries * config.width
    biases = part.bias * (queries + 2 * keys) + part.out_bias * config.width
    norms = {"none": 0, "head": 2 * config.head_dim, "full": queries + keys}[part.qk_norm]
    return matrices + biases + norms + part.sinks * config.heads


def _latent(config: ModelConfig, part: parts.LatentAttention) -> int:
    queries = config.heads * (part.plain_dim + part.rope_dim)
    rank = part.query_rank
    query = config.width * queries if rank is None else rank * (config.width + queries + 1) + part.bias * rank
    down = (config.width + part.bias) * (part.kv_rank + part.rope_dim) + part.kv_rank
    up = part.kv_rank * config.heads * (part.plain_dim + part.value_dim)
    return query + down + up + (config.heads * part.value_dim + part.bias) * config.width


def _delta(config: ModelConfig, part: parts.DeltaAttention) -> int:
    key_heads, value_heads = part.key_heads or config.heads, part.value_heads or config.heads
    head = config.width // config.heads
    key, value = key_heads * (part.key_dim or head), value_heads * (part.value_dim or head)
    projections = config.width * (2 * key + 2 * value + 2 * value_heads) + value * config.width
    return projections + part.convolution * (2 * key + value) + 2 * value_heads + (part.value_dim or head)


def _mlp(config: ModelConfig) -> int:
    width, hidden = config.width, config.hidden
    match config.mlp:
        case parts.MLP() as part:
            return 2 * width * hidden + part.bias * (hidden + width)
        case parts.GLU() as part:
            return 3 * width * hidden + part.bias * (2 * hidden + width)
        case parts.Experts() as part:
            experts = part.count * 3 * width * hidden + part.count * width
            return experts + 3 * width * (part.shared_hidden or 0)
    return config.mlp.num_parameters(config)


def _norms(config: ModelConfig, stack: ModelConfig, crossed: bool) -> int:
    branches = 3 if crossed else 2
    match stack.block:
        case parts.Parallel(shared_norm=shared):
            branches = 1 if shared else 2
        case parts.SandwichNorm():
            branches *= 2
    each = _norm(config, config.norm)
    first = sum(_norm(config, stack.attention_norm(i)) - each for i in range(stack.layers))
    ends = stack.final_norm + stack.embedding.norm
    return (branches * stack.layers + ends) * each + first


def _norm(config: ModelConfig, part: parts.NormConfig) -> int:
    match part:
        case parts.NoNorm():
            return 0
        case parts.BatchNorm() | parts.LayerNorm(bias=True):
            return 2 * config.width
        case parts.LayerNorm() | parts.RMSNorm() | parts.OffsetRMSNorm():
            return config.width
    return part.num_parameters(config)


def _head(config: ModelConfig, vocab: int) -> int:
    part, width = config.head, config.embedding.width or config.width
    count = (0 if part.tied else vocab * width) + part.bias * vocab
    if isinstance(part, parts.MaskedHead):
        return count + config.width * (config.width + part.dense_bias) + _norm(config, config.norm)
    return count + (width * config.width if config.embedding.width else 0)


def embedding_rows(config: ModelConfig, tokenizer_size: int) -> int:
    """Rows of the embedding: as configured, else the tokenizer's size rounded up to a multiple of 64."""
    return config.vocab or -(-tokenizer_size // 64) * 64
