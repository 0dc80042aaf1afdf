"""Configuration of positions: how a model knows order, and how rotary wavelengths are stretched."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from hornbook.model.config.part import Cut, Model, Rows, Weight, WeightedPart
from hornbook.settings.fields import Config, Count, Number


class PositionPart(WeightedPart):
    """Positions of a stack; `model` is the configuration of that stack."""

    place: ClassVar = "bias"
    """Name of the module in the stack."""

    def build_added(self, _model: Model, /) -> Any:
        """The module of vectors that are added to the embedding; None where there are none."""

    def build_bias(self, _model: Model, /) -> Any:
        """The module of scores by distance; None where there are none."""

    def weights(self, _model: Model, /) -> list[Weight]:
        """Parameters; by default none."""
        return []

    def saved_bytes(self, _rows: Rows, /) -> int:
        """Bytes kept for backward at the embedding."""
        return 0

    def shared_bytes(self, _rows: Rows, _heads: int, _dims: int, /) -> int:
        """Bytes kept that the attention of all layers reads; `dims` of each head may turn."""
        return 0


class AddedPositionPart(PositionPart):
    """Vectors added to the embedding."""

    place: ClassVar = "positions"

    def build_added(self, model: Model) -> Any:
        return self.make(model.width, self)


class LearnedPositionsConfig(AddedPositionPart):
    """One learned vector per position, added to the embedding."""

    builder = "attention.position:LearnedPositions"
    kind: Literal["learned"] = "learned"
    length: Count = 1024
    """Number of positions there are vectors for."""
    offset: Count = Field(default=0, ge=0)
    """Rows before the first position's (2 in OPT, BART and RoBERTa); never used, kept for their files."""

    def weights(self, model: Model) -> list[Weight]:
        return [Weight("weight", (self.length + self.offset, model.width), "position")]

    def saved_bytes(self, rows: Rows) -> int:
        return 8 * rows.tokens


class SinusoidalPositionsConfig(AddedPositionPart):
    """Fixed sines and cosines added to the embedding (Vaswani et al. 2017, section 3.5)."""

    builder = "attention.position:SinusoidalPositions"
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
    attention_factor: Number | None = Field(default=None, gt=0)
    """By how much cosines and sines grow; None: as the weights above say."""


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
    """Unchanged wavelengths."""

    kind: Literal["none"] = "none"


RopeScaling = Annotated[NoScaling | LinearScaling | NTKScaling | YaRN | Llama3Scaling, Field(discriminator="kind")]


class RopeConfig(PositionPart):
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

    def shared_bytes(self, rows: Rows, _heads: int, dims: int) -> int:
        return 2 * 4 * rows.tokens * (int(dims * self.fraction) // 2)


class AlibiConfig(PositionPart):
    """Scores fall linearly with distance, by another slope in each head (Press et al. 2021, arXiv 2108.12409)."""

    builder = "attention.position:Alibi"
    kind: Literal["alibi"] = "alibi"
    length: Count = 2048
    """Longest sequence the model is meant for."""

    def build_bias(self, model: Model) -> Any:
        return self.make(model.heads)

    def shared_bytes(self, rows: Rows, heads: int, _dims: int) -> int:
        return 4 * heads * (2 * rows.sequence - 1)


class RelativeBucketsConfig(PositionPart):
    """A learned score for each head and bucket of distances, shared by all layers of a stack (T5, arXiv 1910.10683)."""

    builder = "attention.position:RelativeBuckets"
    kind: Literal["relative"] = "relative"
    length: Count = 512
    """Longest sequence the model is meant for."""
    buckets: Count = Field(default=32, ge=4)
    """Buckets; in an encoder half of them for what comes after."""
    max_distance: Count = Field(default=128, ge=2)
    """Larger distances share the last bucket."""

    def build_bias(self, model: Model) -> Any:
        return self.make(model.heads, self, model.kind == "encoder")

    def weights(self, model: Model) -> list[Weight]:
        return [Weight("weight", (self.buckets, model.heads), "position", Cut(1, "heads", model.heads))]

    def saved_bytes(self, rows: Rows) -> int:
        return 8 * (2 * rows.sequence - 1)

    def shared_bytes(self, rows: Rows, heads: int, _dims: int) -> int:
        return 4 * heads * (2 * rows.sequence - 1)


class NoPositions(PositionPart):
    """Order is known from the causal mask only."""

    kind: Literal["none"] = "none"
    length: Count = 2048
    """Longest sequence the model is meant for."""


PositionConfig = Annotated[
    LearnedPositionsConfig | SinusoidalPositionsConfig | RopeConfig | AlibiConfig | RelativeBucketsConfig | NoPositions,
    Field(discriminator="kind"),
]
