"""Configuration of the Transformer: parts chosen by `kind`, composed, never flagged.

A new kind of part is one frozen config here and one module class in a file of its own, joined by the
table in `hornbook.model.build`.
"""

from typing import Annotated, Literal

from pydantic import Field

from hornbook.fields import Config, Count, Number


class LayerNorm(Config):
    """Ba et al. 2016 (arXiv 1607.06450)."""

    kind: Literal["layer"] = "layer"
    eps: Number = 1e-5
    """Added to the variance."""
    bias: bool = True
    """Learned shift."""


class RMSNorm(Config):
    """Zhang and Sennrich 2019 (arXiv 1910.07467)."""

    kind: Literal["rms"] = "rms"
    eps: Number = 1e-6
    """Added to the mean square."""


NormConfig = Annotated[LayerNorm | RMSNorm, Field(discriminator="kind")]


class LearnedPositions(Config):
    """One learned vector per position, added to the embedding."""

    kind: Literal["learned"] = "learned"
    length: Count = 1024
    """Number of positions there are vectors for."""


class Rope(Config):
    """Rotary positions (Su et al. 2021, arXiv 2104.09864), half-rotation layout."""

    kind: Literal["rope"] = "rope"
    theta: Number = 10_000.0
    """Base of the wavelengths."""
    length: Count = 2048
    """Longest sequence the model is meant for; written to exports as max_position_embeddings."""


PositionConfig = Annotated[LearnedPositions | Rope, Field(discriminator="kind")]


class FullAttention(Config):
    """Softmax attention with any number of key-value heads (MHA, GQA arXiv 2305.13245, MQA)."""

    kind: Literal["full"] = "full"
    kv_heads: Count | None = Field(default=None, ge=1)
    """Key-value heads; by default as many as heads."""
    head_dim: Count | None = Field(default=None, ge=1)
    """Width of a head; by default width / heads."""
    bias: bool = False
    """Biases of the query, key and value projections."""
    out_bias: bool = False
    """Bias of the output projection."""
    qk_norm: bool = False
    """RMSNorm over each head of queries and keys before positions are applied (as Qwen3)."""


AttentionConfig = FullAttention

Activation = Literal["gelu", "gelu_tanh", "relu", "silu"]


class MLP(Config):
    """Two projections with an activation between."""

    kind: Literal["mlp"] = "mlp"
    hidden: Count | None = Field(default=None, ge=1)
    """Inner width; by default 4 x width."""
    activation: Activation = "gelu_tanh"
    """`gelu_tanh` is GPT-2's approximation, `gelu` the exact form."""
    bias: bool = True
    """Biases of both projections."""


class GLU(Config):
    """Gated linear unit (Shazeer 2020, arXiv 2002.05202); with `silu` it is SwiGLU."""

    kind: Literal["glu"] = "glu"
    hidden: Count | None = Field(default=None, ge=1)
    """Inner width; by default 8/3 x width, rounded up to a multiple of 64."""
    activation: Activation = "silu"
    """Activation of the gate."""
    bias: bool = False
    """Biases of the three projections."""


MLPConfig = Annotated[MLP | GLU, Field(discriminator="kind")]


class HeadConfig(Config):
    """Projection to the vocabulary."""

    tied: bool = True
    """Share the matrix with the token embedding."""


class ScaledNormal(Config):
    """N(0, std); projections that write to the residual stream get std / sqrt(2 x layers) (GPT-2)."""

    kind: Literal["scaled_normal"] = "scaled_normal"
    std: Number = Field(default=0.02, gt=0)
    """Standard deviation of matrices and embeddings."""
    position_std: Number = Field(default=0.01, gt=0)
    """Standard deviation of learned positions."""


InitConfig = ScaledNormal


class ModelConfig(Config):
    """A stack of blocks. Defaults are the LLaMA shape; the recipe `gpt2-124m` shows the GPT-2 shape."""

    kind: Literal["decoder"] = "decoder"
    """Family."""
    layers: Count = Field(default=12, ge=1)
    """Blocks."""
    width: Count = Field(default=768, ge=1)
    """Width of the residual stream."""
    heads: Count = Field(default=12, ge=1)
    """Query heads of each attention."""
    vocab: Count | None = Field(default=None, ge=1)
    """Rows of the embedding; by default the tokenizer's size rounded up to a multiple of 64."""
    attention: AttentionConfig = FullAttention()
    """How positions exchange information."""
    mlp: MLPConfig = GLU()
    """What each position computes alone."""
    norm: NormConfig = RMSNorm()
    """Normalisation before attention, before the MLP, and at the end."""
    position: PositionConfig = Rope()
    """How order is known."""
    head: HeadConfig = HeadConfig()
    """From hidden states to logits."""
    init: InitConfig = ScaledNormal()
    """Initial values."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the embedding and on what each branch adds to the residual stream."""

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.attention.head_dim or self.width // self.heads

    @property
    def kv_heads(self) -> int:
        """Key-value heads of each attention."""
        return self.attention.kv_heads or self.heads

    @property
    def hidden(self) -> int:
        """Inner width of the MLP."""
        if self.mlp.hidden is not None:
            return self.mlp.hidden
        if self.mlp.kind == "mlp":
            return 4 * self.width
        return -(-8 * self.width // 3 // 64) * 64
