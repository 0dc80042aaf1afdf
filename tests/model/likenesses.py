"""Small models in the likeness of known ones, for tests that need an architecture and choose its sizes."""

from hornbook.model.config.attention_config import FullAttentionConfig
from hornbook.model.config.mlp_config import PlainMLPConfig
from hornbook.model.config.model_config import EmbeddingConfig, ModelConfig, PostNorm
from hornbook.model.config.norm_config import LayerNormConfig
from hornbook.model.config.position_config import LearnedPositionsConfig


def gpt2_like(
    *, length: int, hidden: int | None = None, layers: int = 2, width: int = 16, heads: int = 2
) -> ModelConfig:
    """GPT-2's parts: biases everywhere, a plain MLP, LayerNorm, `length` learned positions."""
    return ModelConfig(
        layers=layers,
        width=width,
        heads=heads,
        attention=FullAttentionConfig(bias=True, out_bias=True),
        mlp=PlainMLPConfig(hidden=hidden),
        norm=LayerNormConfig(),
        position=LearnedPositionsConfig(length=length),
    )


def bert_like(*, length: int, layers: int = 2, width: int = 32, heads: int = 4) -> ModelConfig:
    """BERT's parts: norms behind the sums and on the embedding, two types of tokens, `length` learned positions."""
    return ModelConfig(
        kind="encoder",
        layers=layers,
        width=width,
        heads=heads,
        attention=FullAttentionConfig(bias=True, out_bias=True),
        mlp=PlainMLPConfig(activation="gelu"),
        norm=LayerNormConfig(eps=1e-12),
        block=PostNorm(),
        position=LearnedPositionsConfig(length=length),
        embedding=EmbeddingConfig(norm=True, types=2),
    )
