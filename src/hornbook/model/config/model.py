"""Configuration of the Transformer: parts chosen by `kind`, composed, never flagged.

A new kind of part is one frozen config, here or in `config_*.py`, and one module class in a file of its own, joined
by the table in `hornbook.model.build`. What varies over depth is a short list of layers that is tiled (`first`,
`pattern`).
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from hornbook.model.config.head import HeadConfig, LMHead
from hornbook.model.config.init import InitConfig, ScaledNormal
from hornbook.model.config.mlp import GLU, MLPConfig
from hornbook.model.config.position import NoPositions, PositionConfig, Rope
from hornbook.settings.fields import OPEN, Config, Count, Number
from hornbook.settings.former import with_present_names

# ---- Normalisation


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


class OffsetRMSNorm(Config):
    """RMSNorm that multiplies by 1 + weight, so that decay pulls it to 1 (as Gemma)."""

    kind: Literal["rms_offset"] = "rms_offset"
    eps: Number = 1e-6
    """Added to the mean square."""


class BatchNorm(Config):
    """Ioffe and Szegedy 2015 (arXiv 1502.03167), over batch and time; for encoders only, as a comparison."""

    kind: Literal["batch"] = "batch"
    eps: Number = 1e-5
    """Added to the variance."""


class NoNorm(Config):
    """The input as it is (as in T-Fixup)."""

    kind: Literal["none"] = "none"


NormConfig = Annotated[LayerNorm | RMSNorm | OffsetRMSNorm | BatchNorm | NoNorm, Field(discriminator="kind"), *OPEN]

# ---- Attention


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
    qk_norm: Literal["none", "head", "full"] = "none"
    """RMSNorm of queries and keys before positions are applied: over each head (Qwen3) or over all (OLMo 2)."""
    window: Count | None = Field(default=None, ge=1)
    """Positions each query sees at most, itself included: the last ones; in an encoder window // 2 on each side."""
    scale: Number | None = Field(default=None, gt=0)
    """Factor of the scores; by default 1 / sqrt(head_dim)."""
    softcap: Number | None = Field(default=None, gt=0)
    """Scores s become softcap * tanh(s / softcap) (Gemma 2)."""
    clip: Number | None = Field(default=None, gt=0)
    """Queries, keys and values are cut to [-clip, clip] (OLMoE)."""
    sinks: bool = False
    """A learned score per head that takes part in the softmax and has no value (gpt-oss)."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the attention probabilities."""


class LatentAttention(Config):
    """Keys and values from a small latent vector, positions in extra dims of their own (DeepSeek, arXiv 2405.04434)."""

    kind: Literal["latent"] = "latent"
    query_rank: Count | None = Field(default=1536, ge=1)
    """Width of the queries' latent; none projects directly."""
    kv_rank: Count = Field(default=512, ge=1)
    """Width of the latent of keys and values: what a cache has to hold."""
    nope_dim: Count = Field(default=128, ge=1)
    """Dims of each head without positions (DeepSeek's qk_nope_head_dim)."""
    rope_dim: Count = Field(default=64, ge=2)
    """Dims of each head that turn; their key is shared by all heads."""
    value_dim: Count = Field(default=128, ge=1)
    """Dims of each head's values."""
    bias: bool = False
    """Biases of the projections down to the latents and out."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout of the attention probabilities."""


class DeltaAttention(Config):
    """Gated DeltaNet (Yang et al. 2024, arXiv 2412.06464): a linear recurrence that corrects its state."""

    kind: Literal["delta"] = "delta"
    key_heads: Count | None = Field(default=None, ge=1)
    """Heads of queries and keys; by default as many as heads."""
    value_heads: Count | None = Field(default=None, ge=1)
    """Heads of values, a multiple of `key_heads`; by default as many as heads."""
    key_dim: Count | None = Field(default=None, ge=1)
    """Width of a key; by default width / heads."""
    value_dim: Count | None = Field(default=None, ge=1)
    """Width of a value; by default width / heads."""
    convolution: Count = Field(default=4, ge=1)
    """Positions of the causal convolution before queries, keys and values."""

    def problems(self, model: "ModelConfig") -> Iterator[tuple[str, str]]:
        """What no single field can see, in a layer of a stack: (key, what is wrong and the remedy)."""
        keys, values = self.key_heads or model.heads, self.value_heads or model.heads
        if values % keys:
            yield "value_heads", f"{values} heads of values do not divide among {keys} heads of keys"
        if None in (self.key_dim, self.value_dim) and model.width % model.heads:
            yield "key_dim", f"width {model.width} does not divide into {model.heads} heads: set key_dim and value_dim"
        if model.kind == "encoder":
            yield "kind", 'it sees earlier tokens only: an encoder needs "full"'


AttentionConfig = Annotated[FullAttention | LatentAttention | DeltaAttention, Field(discriminator="kind"), *OPEN]

# ---- Layers


class PreNorm(Config):
    """`x + f(norm(x))` for attention, then the MLP, and a norm at the end (GPT-2, LLaMA)."""

    kind: Literal["pre"] = "pre"
    multiplier: Number = 1.0
    """Factor of what each branch adds."""


class PostNorm(Config):
    """`norm(x + f(x))`; no norm at the end (the original Transformer, BERT, BART)."""

    kind: Literal["post"] = "post"


class OutputNorm(Config):
    """`x + norm(f(x))`, and a norm at the end (OLMo 2)."""

    kind: Literal["output"] = "output"


class SandwichNorm(Config):
    """`x + norm(f(norm(x)))`, and a norm at the end (Gemma 2)."""

    kind: Literal["sandwich"] = "sandwich"


class Parallel(Config):
    """`x + attention(norm1(x)) + mlp(norm2(x))`, and a norm at the end (GPT-NeoX)."""

    kind: Literal["parallel"] = "parallel"
    shared_norm: bool = False
    """Both branches read the same norm (GPT-J)."""


BlockConfig = Annotated[PreNorm | PostNorm | OutputNorm | SandwichNorm | Parallel, Field(discriminator="kind")]


LayerPosition = Annotated[Rope | NoPositions, Field(discriminator="kind")]


class LayerConfig(Config):
    """What is different in a layer: a part named here stands in for the model's."""

    attention: AttentionConfig | None = None
    """How positions exchange information."""
    mlp: MLPConfig | None = None
    """What each position computes alone."""
    position: LayerPosition | None = None
    """Rotary positions of this layer; `none` leaves it without where the model has rotary ones."""
    attention_norm: NormConfig | None = None
    """Normalisation before attention."""


# ---- Ends


class EmbeddingConfig(Config):
    """From token ids to the residual stream."""

    scale: Number = 1.0
    """Factor of the embedding (Gemma: sqrt(width))."""
    norm: bool = False
    """A norm behind the embedding (BERT, BART, BLOOM)."""
    types: Count = Field(default=0, ge=0)
    """Vectors of token types, of which the first is added everywhere unless types are given (BERT: 2)."""
    width: Count | None = Field(default=None, ge=1)
    """Width of the vectors, if it is not the model's: a projection then follows (OPT-350m)."""


# ---- The model


class ModelConfig(Config):
    """A stack of blocks, or two. Defaults are the LLaMA shape; the recipe `gpt2-124m` shows the GPT-2 shape."""

    kind: Literal["decoder", "encoder", "encoder_decoder"] = "decoder"
    """Family: who sees whom. An encoder sees both ways; an encoder-decoder has a stack of each, joined by attention."""
    layers: Count = Field(default=12, ge=1)
    """Blocks; of an encoder-decoder, those of the decoder."""
    encoder_layers: Count | None = Field(default=None, ge=1)
    """Blocks of the encoder of an encoder-decoder; by default as many as `layers`."""
    width: Count = Field(default=768, ge=1)
    """Width of the residual stream."""
    heads: Count = Field(default=12, ge=1)
    """Query heads of each attention."""
    vocab: Count | None = Field(default=None, ge=1)
    """Rows of the embedding; by default the tokenizer's size rounded up to a multiple of 64."""
    embedding: EmbeddingConfig = EmbeddingConfig()
    """From token ids to the residual stream."""
    attention: AttentionConfig = FullAttention()
    """How positions exchange information."""
    mlp: MLPConfig = GLU()
    """What each position computes alone."""
    norm: NormConfig = RMSNorm()
    """Normalisation."""
    block: BlockConfig = PreNorm()
    """Where normalisation stands and how branches are added."""
    position: PositionConfig = Rope()
    """How order is known."""
    first: list[LayerConfig] = Field(default_factory=list)
    """What is different in the first layers, one by one."""
    pattern: list[LayerConfig] = Field(default_factory=list)
    """What is different in the layers behind them, repeated to the last; it has to come out even."""
    head: HeadConfig = LMHead()
    """What is read from the hidden states: tokens, labels, numbers, places."""
    init: InitConfig = ScaledNormal()
    """Initial values."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the embedding and on what each branch adds to the residual stream."""
    stochastic_depth: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a row skips a branch of the last layer; it falls linearly to 0 before the first."""

    @model_validator(mode="before")
    @classmethod
    def _accept_former(cls, tree: Any) -> Any:
        """Accept settings by their former names: config.json of a model holds the names of its time."""
        return with_present_names(tree, ("model",))

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        own = self.attention.head_dim if isinstance(self.attention, FullAttention) else None
        return own or self.width // self.heads

    @property
    def kv_heads(self) -> int:
        """Key-value heads of each attention."""
        own = self.attention.kv_heads if isinstance(self.attention, FullAttention) else None
        return own or self.heads

    @property
    def hidden(self) -> int:
        """Inner width of the MLP, or of one expert; a part from outside may have its own."""
        given = getattr(self.mlp, "hidden", None)
        if given is not None:
            return given
        if self.mlp.kind == "mlp":
            return 4 * self.width
        return -(-8 * self.width // 3 // 64) * 64

    @property
    def final_norm(self) -> bool:
        """Whether a norm stands at the end of a stack."""
        return self.block.kind != "post"

    def layer(self, number: int) -> Self:
        """This configuration as layer `number` sees it: what `first` and `pattern` say of it is in its place."""
        special = self._special(number)
        if special is None:
            return self
        parts = {"attention": special.attention, "mlp": special.mlp, "position": special.position}
        return self.model_copy(update={name: part for name, part in parts.items() if part is not None})

    def attention_norm(self, number: int) -> NormConfig:
        """Normalisation before the attention of layer `number`."""
        special = self._special(number)
        return (special and special.attention_norm) or self.norm

    def _special(self, number: int) -> LayerConfig | None:
        """What `first` and `pattern` say of a layer."""
        if number < len(self.first):
            return self.first[number]
        return self.pattern[(number - len(self.first)) % len(self.pattern)] if self.pattern else None

    @property
    def encoder(self) -> Self:
        """The encoder stack of an encoder-decoder, as a configuration of its own."""
        return self.model_copy(update={"kind": "encoder", "layers": self.encoder_layers or self.layers})
