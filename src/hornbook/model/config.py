"""Configuration of the Transformer: parts chosen by `kind`, composed, never flagged.

A new kind of part is one frozen config here and one module class in a file of its own, joined by the
table in `hornbook.model.build`. What varies over depth is a short list of layers that is tiled (`first`, `pattern`).
"""

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field

from hornbook.fields import OPEN, Config, Count, Number

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

# ---- Positions


class LearnedPositions(Config):
    """One learned vector per position, added to the embedding."""

    kind: Literal["learned"] = "learned"
    length: Count = 1024
    """Number of positions there are vectors for."""
    offset: Count = Field(default=0, ge=0)
    """Rows before the first position's (2 in OPT, BART and RoBERTa); never used, kept for their files."""


class SinusoidalPositions(Config):
    """Fixed sines and cosines added to the embedding (Vaswani et al. 2017, section 3.5)."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    length: Count = 2048
    """Longest sequence the model is meant for."""


class LinearScaling(Config):
    """Positions divided by `factor` (Chen et al. 2023, arXiv 2306.15595)."""

    kind: Literal["linear"] = "linear"
    factor: Number = Field(gt=0)
    """How much longer sequences may be."""


class NTKScaling(Config):
    """A larger base, theta * factor^(d / (d - 2)), so that fast dims stay and slow ones stretch."""

    kind: Literal["ntk"] = "ntk"
    factor: Number = Field(gt=0)
    """How much longer sequences may be."""


class YaRN(Config):
    """Peng et al. 2023 (arXiv 2309.00071): slow dims interpolated, fast ones kept, a ramp between, scores sharpened."""

    kind: Literal["yarn"] = "yarn"
    factor: Number = Field(gt=0)
    """How much longer sequences may be."""
    original: Count = Field(ge=1)
    """Length the model was trained on before."""
    beta_fast: Number = 32.0
    """Dims that turn more often than this over `original` are kept."""
    beta_slow: Number = 1.0
    """Dims that turn less often than this are interpolated."""
    mscale: Number | None = None
    """DeepSeek's weight of the attention factor; None takes 0.1 ln(factor) + 1."""
    mscale_all_dim: Number | None = None
    """DeepSeek's second weight, which its attention scale takes up as well."""


class Llama3Scaling(Config):
    """Wavelengths above `original / low` divided by `factor`, those below `original / high` kept (Llama 3.1)."""

    kind: Literal["llama3"] = "llama3"
    factor: Number = Field(gt=0)
    """How much longer sequences may be."""
    low: Number = 1.0
    """Turns over `original` below which a dim is divided."""
    high: Number = 4.0
    """Turns over `original` above which a dim is kept."""
    original: Count = Field(ge=1)
    """Length the model was trained on before."""


class NoScaling(Config):
    """Wavelengths as they are."""

    kind: Literal["none"] = "none"


RopeScaling = Annotated[NoScaling | LinearScaling | NTKScaling | YaRN | Llama3Scaling, Field(discriminator="kind")]


class Rope(Config):
    """Rotary positions (Su et al. 2021, arXiv 2104.09864)."""

    kind: Literal["rope"] = "rope"
    theta: Number = 10_000.0
    """Base of the wavelengths."""
    length: Count = 2048
    """Longest sequence the model is meant for; written to exports as max_position_embeddings."""
    fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of each head's dims that turn, the first ones (GPT-NeoX: 0.25)."""
    layout: Literal["half", "interleaved"] = "half"
    """Dim i turns with dim i + d/2, or with its neighbour (GPT-J)."""
    scaling: RopeScaling = NoScaling()
    """How wavelengths are stretched for longer sequences."""


class Alibi(Config):
    """Scores fall linearly with distance, by another slope in each head (Press et al. 2021, arXiv 2108.12409)."""

    kind: Literal["alibi"] = "alibi"
    length: Count = 2048
    """Longest sequence the model is meant for."""


class RelativeBuckets(Config):
    """A learned score for each head and bucket of distances, shared by all layers of a stack (T5, arXiv 1910.10683)."""

    kind: Literal["relative"] = "relative"
    length: Count = 512
    """Longest sequence the model is meant for."""
    buckets: Count = Field(default=32, ge=4)
    """Buckets; in an encoder half of them for what comes after."""
    max_distance: Count = Field(default=128, ge=2)
    """Larger distances share the last bucket."""


class NoPositions(Config):
    """Order is known from the causal mask only."""

    kind: Literal["none"] = "none"
    length: Count = 2048
    """Longest sequence the model is meant for."""


PositionConfig = Annotated[
    LearnedPositions | SinusoidalPositions | Rope | Alibi | RelativeBuckets | NoPositions, Field(discriminator="kind")
]

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
    plain_dim: Count = Field(default=128, ge=1)
    """Dims of each head without positions."""
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

# ---- Feed-forward

Activation = Literal["gelu", "gelu_tanh", "relu", "relu2", "silu"]


class MLP(Config):
    """Two projections with an activation between."""

    kind: Literal["mlp"] = "mlp"
    hidden: Count | None = Field(default=None, ge=1)
    """Inner width; by default 4 x width."""
    activation: Activation = "gelu_tanh"
    """`gelu_tanh` is GPT-2's approximation, `gelu` the exact form, `relu2` the square of `relu`."""
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


class SoftmaxRouter(Config):
    """Softmax over all experts, the largest chosen (Mixtral, OLMoE, Qwen3)."""

    kind: Literal["softmax"] = "softmax"
    renormalize: bool = True
    """The chosen ones' weights sum to 1 (Mixtral, Qwen3; not OLMoE)."""
    jitter: float = Field(default=0.0, ge=0, lt=1)
    """In training the router's inputs are multiplied by numbers from [1 - jitter, 1 + jitter]."""


class SigmoidRouter(Config):
    """Sigmoid scores; a bias that no gradient reaches takes part in the choice only (DeepSeek-V3, arXiv 2412.19437)."""

    kind: Literal["sigmoid"] = "sigmoid"
    renormalize: bool = True
    """The chosen ones' weights sum to 1 before `scale`."""
    scale: Number = 1.0
    """Factor of the weights."""
    groups: Count = Field(default=1, ge=1)
    """Experts are in so many groups ..."""
    groups_active: Count = Field(default=1, ge=1)
    """... of which so many may be chosen from: those with the largest sum of their two best."""
    balance_rate: Number = Field(default=1e-3, ge=0)
    """After each step the bias moves by so much against the sign of an expert's excess load (arXiv 2408.15664)."""


class SwitchRouter(Config):
    """One expert per token, its softmax probability as weight (Fedus et al. 2021, arXiv 2101.03961)."""

    kind: Literal["switch"] = "switch"
    jitter: float = Field(default=0.01, ge=0, lt=1)
    """In training the router's inputs are multiplied by numbers from [1 - jitter, 1 + jitter]."""


RouterConfig = Annotated[SoftmaxRouter | SigmoidRouter | SwitchRouter, Field(discriminator="kind")]


class Experts(Config):
    """A mixture of gated linear units, of which each token uses a few (Shazeer et al. 2017, arXiv 1701.06538)."""

    kind: Literal["experts"] = "experts"
    count: Count = Field(default=8, ge=1)
    """Experts in each layer."""
    active: Count = Field(default=2, ge=1)
    """Experts each token uses."""
    hidden: Count | None = Field(default=None, ge=1)
    """Inner width of an expert; by default as of a GLU."""
    activation: Activation = "silu"
    """Activation of the gates."""
    router: RouterConfig = SoftmaxRouter()
    """Who is chosen, and how much they count."""
    shared_hidden: Count | None = Field(default=None, ge=1)
    """Inner width of an expert that every token uses besides; none by default."""
    capacity: Number | None = Field(default=None, gt=0)
    """In training an expert takes at most capacity * active * tokens / count tokens of a row; the rest pass it by."""
    balance_loss: Number = Field(default=0.01, ge=0)
    """Weight of the loss that is least when all experts of a layer are used evenly (1 then; Switch, eq. 4)."""
    z_loss: Number = Field(default=0.0, ge=0)
    """Weight of the mean squared log-sum of the router's exponentials (ST-MoE, arXiv 2202.08906)."""

    def problems(self) -> Iterator[tuple[str, str]]:
        """What no single field can see: (key, what is wrong and the remedy)."""
        if self.active > self.count:
            yield "active", f"{self.active} experts cannot be active where there are {self.count}"
        router = self.router
        if router.kind == "switch" and self.active != 1:
            yield "active", f"a switch router chooses one expert: set it to 1, not {self.active}"
        if router.kind != "sigmoid":
            return
        if self.count % router.groups:
            yield "router.groups", f"{self.count} experts do not divide into {router.groups} groups"
        elif router.groups_active > router.groups:
            yield "router.groups_active", f"there are {router.groups} groups, not {router.groups_active}"
        elif (room := router.groups_active * self.count // router.groups) < self.active <= self.count:
            text = f"{router.groups_active} groups hold {room} experts, but {self.active} are active"
            yield "router.groups_active", f"{text}: raise it, or lower the number of groups"


MLPConfig = Annotated[MLP | GLU | Experts, Field(discriminator="kind"), *OPEN]

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


class LMHead(Config):
    """Projection to the vocabulary."""

    kind: Literal["lm"] = "lm"
    tied: bool = True
    """Share the matrix with the token embedding."""
    bias: bool = False
    """A learned shift of each token's logit (BART)."""
    scale: Number = 1.0
    """Factor of the hidden states before it (T5 v1.0: 1 / sqrt(width))."""
    softcap: Number | None = Field(default=None, gt=0)
    """Logits z become softcap * tanh(z / softcap) (Gemma 2)."""


class MaskedHead(Config):
    """Projection, activation and norm before that to the vocabulary (BERT)."""

    kind: Literal["masked"] = "masked"
    tied: bool = True
    """Share the matrix with the token embedding."""
    bias: bool = True
    """A learned shift of each token's logit."""
    activation: Activation = "gelu"
    """Activation of the projection."""
    dense_bias: bool = True
    """Bias of the projection."""


HeadConfig = Annotated[LMHead | MaskedHead, Field(discriminator="kind")]

# ---- Initial values


class NormalValues(Config):
    """N(0, std^2)."""

    kind: Literal["normal"] = "normal"
    std: Number = Field(ge=0)
    """Standard deviation."""


class TruncatedValues(Config):
    """A normal distribution cut at `cut` of its own standard deviations and then widened to have `std`."""

    kind: Literal["truncated"] = "truncated"
    std: Number = Field(ge=0)
    """Standard deviation after the cut; the uncut one is larger (cut at 2: std / 0.8796)."""
    cut: Number = Field(default=2.0, gt=0)
    """Where the uncut distribution ends, in its standard deviations."""


class UniformValues(Config):
    """Uniform in [-bound, bound]; the standard deviation is bound / sqrt(3)."""

    kind: Literal["uniform"] = "uniform"
    bound: Number = Field(ge=0)
    """Largest size of a value."""


class OrthogonalValues(Config):
    """A random matrix with orthonormal rows, or columns where those are fewer (Saxe et al. 2014, arXiv 1312.6120)."""

    kind: Literal["orthogonal"] = "orthogonal"
    gain: Number = 1.0
    """Factor of the matrix."""


class ConstantValues(Config):
    """The same value everywhere."""

    kind: Literal["constant"] = "constant"
    value: Number = 0.0
    """The value."""


Distribution = Annotated[
    NormalValues | TruncatedValues | UniformValues | OrthogonalValues | ConstantValues, Field(discriminator="kind")
]


class Scheme(Config):
    """What every scheme of initial values has besides its formula."""

    overrides: dict[str, Distribution] = Field(default_factory=dict)
    """Glob over names of parameters -> distribution in the scheme's place; of several that match, the last holds."""


class Normal(Scheme):
    """The same N(0, std) for all matrices and embeddings (BERT, BART, LLaMA's published configuration)."""

    kind: Literal["normal"] = "normal"
    std: Number = Field(default=0.02, gt=0)
    """Standard deviation."""


class ScaledNormal(Scheme):
    """N(0, std); projections that write to the residual stream get std / sqrt(2 x layers) (GPT-2)."""

    kind: Literal["scaled_normal"] = "scaled_normal"
    std: Number = Field(default=0.02, gt=0)
    """Standard deviation of matrices and embeddings."""
    position_std: Number = Field(default=0.01, gt=0)
    """Standard deviation of learned positions."""


class Megatron(Scheme):
    """As `scaled_normal`, but every distribution is cut and keeps its standard deviation (ModernBERT, OLMo)."""

    kind: Literal["megatron"] = "megatron"
    std: Number = Field(default=0.02, gt=0)
    """Standard deviation after the cut."""
    cut: Number = Field(default=2.0, gt=0)
    """Where the uncut distributions end, in their standard deviations."""


class SmallInit(Scheme):
    """N(0, 2 / (5 width)) (Nguyen and Salazar 2019); residual outputs N(0, (2 / (layers sqrt(width)))^2) (NeoX-20B)."""

    kind: Literal["small"] = "small"


class Xavier(Scheme):
    """Uniform in +-gain sqrt(6 / (inputs + outputs)) (Glorot and Bengio 2010); embeddings N(0, 1 / width)."""

    kind: Literal["xavier"] = "xavier"
    gain: Number = Field(default=1.0, gt=0)
    """Factor of matrices."""


class He(Scheme):
    """N(0, 2 / inputs) (He et al. 2015, arXiv 1502.01852); embeddings N(0, 1 / width)."""

    kind: Literal["he"] = "he"


class T5(Scheme):
    """Each matrix by its inputs; the query takes up the scores' scale (Raffel et al. 2020, arXiv 1910.10683)."""

    kind: Literal["t5"] = "t5"
    factor: Number = Field(default=1.0, gt=0)
    """Factor of every standard deviation."""


class TFixup(Scheme):
    """Xavier, scaled so that neither norms nor warm-up are needed (Huang et al. 2020): for `norm.kind = "none"`.

    Encoder-decoders follow the paper. What it gives for one stack alone is derived from the paper's encoder.
    """

    kind: Literal["tfixup"] = "tfixup"


class MuP(Scheme):
    """Maximal update parametrisation (Yang et al. 2022, arXiv 2203.03466), in depth too: CompleteP (arXiv 2505.01618).

    What is tuned at the base size holds at any size. Standard deviations are here; factors of the model
    (`hornbook.parametrization`) and of the optimizer (`hornbook.model.mup`) follow from the same numbers.
    """

    kind: Literal["mup"] = "mup"
    base_width: Count = Field(ge=1)
    """Width at which the settings were tuned."""
    base_layers: Count | None = Field(default=None, ge=1)
    """Layers at which they were tuned; none leaves depth as it is."""
    depth_power: float = Field(default=1.0, ge=0.5, le=1)
    """Branches are multiplied by (layers / base_layers)^-depth_power: 1 is CompleteP, 0.5 is depth-muP."""
    std: Number = Field(default=0.02, gt=0)
    """Standard deviation of embeddings, and of matrices at the base width."""
    output: Number = Field(default=1.0, gt=0)
    """Factor of the hidden states before the head at the base width."""


class LSUV(Scheme):
    """Orthonormal matrices, scaled in turn until the outputs over the first microbatch have variance 1.

    Layer-sequential unit variance (Mishkin and Matas 2016, arXiv 1511.06422). The matrices of experts stay orthonormal.
    """

    kind: Literal["lsuv"] = "lsuv"
    std: Number = Field(default=0.02, gt=0)
    """Standard deviation of embeddings."""


InitConfig = Annotated[
    Normal | ScaledNormal | Megatron | SmallInit | Xavier | He | T5 | TFixup | MuP | LSUV, Field(discriminator="kind")
]


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
    """From hidden states to logits."""
    init: InitConfig = ScaledNormal()
    """Initial values."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on the embedding and on what each branch adds to the residual stream."""
    stochastic_depth: float = Field(default=0.0, ge=0, lt=1)
    """Probability that a row skips a branch of the last layer; it falls linearly to 0 before the first."""

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
