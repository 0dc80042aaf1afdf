"""Configuration of the Transformer: parts chosen by `kind`, composed, never flagged.

A new kind of part is one frozen config, which says everything about itself (`config/part.py`), and one module class in
a file of its own. What varies over depth is a short list of layers that is tiled (`first`, `pattern`).
"""

from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hornbook.model.config.attention_config import AttentionConfig, FullAttentionConfig
from hornbook.model.config.head_config import LMHead
from hornbook.model.config.init_config import InitConfig, ScaledNormal
from hornbook.model.config.mlp_config import GLUConfig, MLPConfig
from hornbook.model.config.norm_config import NormConfig, RMSNormConfig, norm_weights
from hornbook.model.config.part import (
    Model,
    Problems,
    Product,
    Rows,
    Weight,
    WeightedPart,
    linear,
    placed,
    products_of,
)
from hornbook.model.config.position_config import NoPositions, PositionConfig, RopeConfig
from hornbook.model.config.replaced_config import HeadConfig
from hornbook.settings.fields import Config, Count, Number
from hornbook.settings.renamed import with_present_names

# ---- Layers


# `norms`: where norms stand around each sublayer (`hornbook.model.block.Norms`).


class PreNorm(Config):
    """`x + f(norm(x))` for attention, then the MLP, and a norm at the end (GPT-2, LLaMA)."""

    norms: ClassVar = ("before",)
    kind: Literal["pre"] = "pre"
    multiplier: Number = 1.0
    """Factor of what each branch adds."""


class PostNorm(Config):
    """`norm(x + f(x))`; no norm at the end (the original Transformer, BERT, BART)."""

    norms: ClassVar = ("sum",)
    kind: Literal["post"] = "post"


class OutputNorm(Config):
    """`x + norm(f(x))`, and a norm at the end (OLMo 2)."""

    norms: ClassVar = ("out",)
    kind: Literal["output"] = "output"


class SandwichNorm(Config):
    """`x + norm(f(norm(x)))`, and a norm at the end (Gemma 2)."""

    norms: ClassVar = ("before", "out")
    kind: Literal["sandwich"] = "sandwich"


class Parallel(Config):
    """`x + attention(norm1(x)) + mlp(norm2(x))`, and a norm at the end (GPT-NeoX)."""

    kind: Literal["parallel"] = "parallel"
    shared_norm: bool = False
    """Both branches read the same norm (GPT-J)."""


BlockConfig = Annotated[PreNorm | PostNorm | OutputNorm | SandwichNorm | Parallel, Field(discriminator="kind")]


LayerPosition = Annotated[RopeConfig | NoPositions, Field(discriminator="kind")]


class LayerConfig(Config):
    """Differences in a layer: a part named here replaces the model's."""

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
    """A norm after the embedding (BERT, BART, BLOOM)."""
    types: Count = Field(default=0, ge=0)
    """Vectors of token types, of which the first is added everywhere unless types are given (BERT: 2)."""
    width: Count | None = Field(default=None, ge=1)
    """Width of the vectors, if it is not the model's: a projection then follows (OPT-350m)."""
    projected: Literal["first", "last"] = "first"
    """Before positions, types and norm (OPT), or behind them, which are then as wide as the vectors (ELECTRA)."""
    bias: bool = False
    """Bias of the projection."""

    def weights(self, model: Model) -> list[Weight]:
        """Parameters between the vectors and the stream, but for the norm."""
        found = linear("project", self.width, model.width, bias=self.bias) if self.width else []
        types = [Weight("types.weight", (self.types, model.entrance.width), "position")] if self.types else []
        return found + types

    def num_matmul_weights(self, model: Model) -> int:
        """Weights that each position is multiplied by."""
        return (self.width or 0) * model.width


# ---- Multi-token prediction


class _MTPPart(WeightedPart):
    """Layers around the blocks that predict further tokens."""

    reads_tokens: ClassVar = False
    """Whether blocks read vectors of tokens beside states."""

    def products(self, model: Model) -> list[Product]:
        """Products of a token with weights outside of blocks."""
        return products_of(self.weights(model))


class NoMTP(_MTPPart):
    """The next token alone is predicted."""

    kind: Literal["none"] = "none"
    depth: ClassVar = 0

    def weights(self, _model: Model) -> list[Weight]:
        return []

    def saved_bytes(self, _model: Model, _rows: Rows) -> int:
        """Bytes kept for backward outside of blocks and head."""
        return 0


class _MTP(_MTPPart):
    """Blocks behind the last one, each configured as a further layer would be."""

    depth: Count = Field(default=1, ge=1)
    """Blocks: each predicts one token further ahead."""

    def weights(self, model: Model) -> list[Weight]:
        """Parameters outside of blocks."""
        norm, found = norm_weights(model.norm, model) if model.final_norm else [], list[Weight]()
        for number in range(model.layers, model.num_blocks):
            found += placed(f"joins.{number}", self._join(model)) + placed(f"norms.{number}", norm)
        return found

    def saved_bytes(self, model: Model, rows: Rows) -> int:
        norm = model.norm.saved_bytes(model.width, rows) + model.norm.keeps_input(rows) * rows.stream(model)
        each = model.final_norm * norm + self._join_bytes(model, rows)
        return self.depth * each - (self.depth - 1) * rows.stream(model) * self._is_read_again(model, rows)

    def problems(self, model: Model) -> Problems:
        if (model.kind, model.head.kind) != ("decoder", "lm"):
            found = f'model.kind is "{model.kind}", model.head.kind "{model.head.kind}"'
            yield "mtp", f'further tokens are predicted by a decoder with the head "lm", and {found}: leave it out'

    def _join(self, _model: Model) -> list[Weight]:
        """Parameters before one block."""
        return []

    def _join_bytes(self, _model: Model, _rows: Rows) -> int:
        """Bytes kept of what stands before one block."""
        return 0

    def _is_read_again(self, model: Model, rows: Rows) -> bool:
        """Whether the states that each block but the first reads are held, or made again, all the same."""
        raise NotImplementedError


class SequentialMTP(_MTP):
    """Block k reads the states of the one before and the token k further on (DeepSeek-V3, arXiv 2412.19437, 2.2)."""

    kind: Literal["sequential"] = "sequential"
    reads_tokens: ClassVar = True

    def _join(self, model: Model) -> list[Weight]:
        norms = [
            each for name in ("state_norm", "token_norm") for each in placed(name, norm_weights(model.norm, model))
        ]
        return norms + linear("project", 2 * model.width, model.width)

    def _join_bytes(self, model: Model, rows: Rows) -> int:
        """Of the norm of the states, that of the vectors of tokens and those, and the product's input and matrix."""
        norm, stream = model.norm, rows.stream(model)
        inputs = 2 * norm.keeps_input(rows) * stream
        return 2 * norm.saved_bytes(model.width, rows) + inputs + 2 * stream + rows.cast(2 * model.width**2)

    def _is_read_again(self, model: Model, rows: Rows) -> bool:
        return rows.rebuilding and model.norm.rebuilt and model.final_norm and model.norm.keeps_input(rows)


class ParallelMTP(_MTP):
    """Block k reads the states that the head of the next token reads (as in Gloeckle et al. 2024, arXiv 2404.19737)."""

    kind: Literal["parallel"] = "parallel"

    def _is_read_again(self, model: Model, rows: Rows) -> bool:
        begins = isinstance(model.block, Parallel) or "before" in model.block.norms
        return not begins or model.attention_norm(model.layers).keeps_input(rows)


MTPConfig = Annotated[NoMTP | SequentialMTP | ParallelMTP, Field(discriminator="kind")]


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
    attention: AttentionConfig = FullAttentionConfig()
    """How positions exchange information."""
    mlp: MLPConfig = GLUConfig()
    """What each position computes alone."""
    norm: NormConfig = RMSNormConfig()
    """Normalisation."""
    block: BlockConfig = PreNorm()
    """Where normalisation stands and how branches are added."""
    position: PositionConfig = RopeConfig()
    """How order is known."""
    first: list[LayerConfig] = Field(default_factory=list)
    """Differences in the first layers, one by one."""
    pattern: list[LayerConfig] = Field(default_factory=list)
    """Differences in the layers after `first`, repeated up to the last; their number must divide those layers."""
    head: HeadConfig = LMHead()
    """What is read from the hidden states: tokens, labels, numbers, places."""
    mtp: MTPConfig = NoMTP()
    """Multi-token prediction: what predicts further tokens in training, and drafts text; `train.loss.mtp` weighs it."""
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
        own = self.attention.head_dim if isinstance(self.attention, FullAttentionConfig) else None
        return own or self.width // self.heads

    @property
    def entrance(self) -> "ModelConfig":
        """The same, as wide as what is added to the vectors, and their norm."""
        narrow = self.embedding.width if self.embedding.projected == "last" else None
        return self.model_copy(update={"width": narrow}) if narrow else self

    @property
    def kv_heads(self) -> int:
        """Key-value heads of each attention."""
        own = self.attention.kv_heads if isinstance(self.attention, FullAttentionConfig) else None
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
    def num_blocks(self) -> int:
        """Blocks of the stack, and behind them those of multi-token prediction, which are layers by their number."""
        return self.layers + self.mtp.depth

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

    def alike(self, number: int) -> int:
        """What layers that are configured alike have in common, in this process."""
        return id(self._special(number))

    def _special(self, number: int) -> LayerConfig | None:
        """What `first` and `pattern` say of a layer."""
        if number < len(self.first):
            return self.first[number]
        return self.pattern[(number - len(self.first)) % len(self.pattern)] if self.pattern else None

    @property
    def encoder(self) -> Self:
        """The encoder stack of an encoder-decoder, as a configuration of its own."""
        layers = self.encoder_layers or self.layers
        return self.model_copy(update={"kind": "encoder", "layers": layers, "mtp": NoMTP()})
