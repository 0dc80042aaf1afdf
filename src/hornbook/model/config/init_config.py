"""Configuration of initial values: distributions, and the schemes that choose one for each logical matrix."""

from typing import Annotated, Literal

from pydantic import Field

from hornbook.settings.fields import Config, Count, Number


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
    """Fields of every scheme of initial values."""

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

    What is tuned at the base size holds at any size. Standard deviations are here; factors of the model and
    of the optimizer (`hornbook.model.config.mup`) follow from the same numbers.
    """

    kind: Literal["mup"] = "mup"
    base_width: Count = Field(ge=1)
    """Width at which the settings were tuned."""
    base_layers: Count | None = Field(default=None, ge=1)
    """Layers at which they were tuned; none scales nothing by depth."""
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
