"""How many parameters a model has: arithmetic on its configuration, without building it."""

from hornbook.model.config import MLP, FullAttention, LayerNorm, LearnedPositions, ModelConfig


def count_parameters(config: ModelConfig, vocab: int) -> int:
    """Number of trained values of the model; `vocab` is the rows of its embedding."""
    return sum(parameter_counts(config, vocab).values())


def parameter_counts(config: ModelConfig, vocab: int) -> dict[str, int]:
    """Parameters by part, over all layers: embedding, positions, attention, mlp, norms, head."""
    return {
        "embedding": vocab * config.width,
        "positions": config.position.length * config.width if isinstance(config.position, LearnedPositions) else 0,
        "attention": config.layers * _attention(config, config.attention),
        "mlp": config.layers * _mlp(config),
        "norms": (2 * config.layers + 1) * _norm(config),
        "head": 0 if config.head.tied else vocab * config.width,
    }


def _attention(config: ModelConfig, attention: FullAttention) -> int:
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    matrices = config.width * (queries + 2 * keys) + queries * config.width
    biases = attention.bias * (queries + 2 * keys) + attention.out_bias * config.width
    return matrices + biases + attention.qk_norm * 2 * config.head_dim


def _mlp(config: ModelConfig) -> int:
    inward = 1 if isinstance(config.mlp, MLP) else 2
    matrices = (inward + 1) * config.width * config.hidden
    return matrices + config.mlp.bias * (inward * config.hidden + config.width)


def _norm(config: ModelConfig) -> int:
    shift = isinstance(config.norm, LayerNorm) and config.norm.bias
    return config.width * (2 if shift else 1)


def embedding_rows(config: ModelConfig, tokenizer_size: int) -> int:
    """Rows of the embedding: as configured, else the tokenizer's size rounded up to a multiple of 64."""
    return config.vocab or -(-tokenizer_size // 64) * 64
