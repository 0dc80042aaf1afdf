"""What a part of a model says about itself: the class it builds, its parameters, its operations, its conditions.

A part is attention, an MLP, a norm, positions or a head; its configuration is the only place that speaks of it. Parts
from outside the package have the same methods: `build` and `num_parameters` they must have, the rest has the defaults
of `LayerPart`. Everything but `build` is arithmetic on settings.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

from hornbook.errors import UsageError
from hornbook.settings.fields import Config, named

Problems = Iterator[tuple[str, str]]
"""(dotted key below `model`, what is wrong and the remedy) of what no single field can see."""


Model = Any
"""`ModelConfig`, whose file imports those of the parts; in a layer, as the layer sees it (`ModelConfig.layer`)."""


FEW_ROWS = 64
"""Below this number of rows (decoding) putting weights side by side costs more than the single product saves: a decode
step of a 124M-parameter model took 1.43 times as long."""


@dataclass(frozen=True)
class Rows:
    """Rows that go forward together in training, and how their activations are held."""

    rows: int
    sequence: int
    itemsize: int
    """Bytes of a value of an activation: 4 in fp32, else 2."""
    rebuilding: bool = False
    """Results of cheap calls are made again in backward (`hornbook.model.layers.saved_tensors`)."""
    source: int | None = None
    """Tokens of a row that the encoder of an encoder-decoder reads; by default as many as `sequence`."""
    stream_ranks: int = 1
    """Tensor ranks that the residual stream between products is divided over (`parallel.sequence`)."""
    fused: bool = False
    """Attention is the fused kernel of a GPU: it keeps no probabilities, but a sum for each query and head."""
    eager: bool = False
    """All else is torch's operations one after the other: on a GPU without `train.compile`, and on fake tensors."""
    frozen: bool = False
    """Norms are not trained."""
    traced: bool = False
    """On fake tensors: a norm is several of them, and what attention gives is copied before the next product."""

    @property
    def tokens(self) -> int:
        """Tokens of all rows."""
        return self.rows * self.sequence

    @property
    def narrow(self) -> "Rows":
        """What of the rows a rank has of the residual stream."""
        return self if self.stream_ranks == 1 else replace(self, sequence=-(-self.sequence // self.stream_ranks))

    def values(self, number: int) -> int:
        """Bytes of so many values for each token."""
        return self.itemsize * self.tokens * number

    def stream(self, model: Model) -> int:
        """Bytes of the residual stream at one place."""
        return self.values(model.width)

    def cast(self, weights: int) -> int:
        """Bytes kept of a matrix beside its parameter: its values in the dtype of products."""
        return 0 if self.itemsize == 4 or self.rebuilding else self.itemsize * weights

    def stacked(self, weights: int) -> int:
        """Bytes kept of matrices whose products are one (`hornbook.model.layers.linear.fused_linear`)."""
        if self.tokens < FEW_ROWS:
            return self.cast(weights)
        return 0 if self.rebuilding else self.itemsize * weights


class Product(NamedTuple):
    """A product with weights that each token goes through; weights of one product count as one matrix."""

    inner: int
    """Values of a token that go in."""
    columns: int
    """Values that come out."""
    cut: Literal["columns", "inner", "none"] = "none"
    """Which side tensor ranks divide."""
    uses: int = 1
    """Times that each token is multiplied, of experts."""
    experts: int = 0
    """Matrices that the tokens are spread over; 0: there is one."""


class Part(Config):
    """What all parts have."""

    builder: ClassVar[str] = ""
    """`module:name` below `hornbook.model` of the class or function that makes the part's module."""

    def make(self, *args: Any) -> Any:
        """The builder's result. It is imported only here, when a model is built: configurations import no torch."""
        if not self.builder:
            raise UsageError(f"the part {type(self).__name__} has no method `build`")
        return named(f"model.{self.builder}")(*args)

    def problems(self, _model: Model, /) -> Problems:
        """Settings that do not go together in this model, of attention and MLPs in this layer; by default none."""
        return iter(())


def unknown_memory(part: Part) -> UsageError:
    """The error of a part that does not say what it keeps."""
    return UsageError(
        f"{type(part).__name__} does not say what it keeps for backward, so that the memory of a step cannot be "
        "predicted: `hornbook bench RECIPE` measures it"
    )


class LayerPart(Part):
    """Attention or an MLP of one layer."""

    scored: ClassVar[bool] = True
    """Whether attention has scores, to which positions may add theirs by distance."""

    def build(self, model: Model, layer: int, /) -> Any:
        """The module of layer `layer`."""
        return self.make(model, layer)

    def num_parameters(self, _model: Model, /) -> int:
        """Trained values of one layer."""
        raise UsageError(f"the part {type(self).__name__} has no method `num_parameters`")

    def num_matmul_weights(self, model: Model) -> int:
        """Weights of one layer that each position is multiplied by; by default all of its parameters."""
        return self.num_parameters(model)

    def products(self, model: Model, /) -> list[Product]:
        """Products of a token with weights in one layer; by default one of all `num_matmul_weights`."""
        return [Product(model.width, -(-method(self, "num_matmul_weights")(model) // model.width))]

    def saved_bytes(self, _model: Model, _rows: Rows, /) -> int:
        """Bytes that one layer keeps for backward, all but its input."""
        raise unknown_memory(self)

    def rotary_dims(self, _model: Model, /) -> int:
        """Dims of a head that rotary positions may turn; by default none."""
        return 0

    def attention_flops(self, _model: Model, _sequence: int, /) -> tuple[float, float]:
        """Operations of a token in a row of `sequence` tokens, forward and backward, besides products with weights.

        Over the pairs of query and key that see each other, and over all pairs; by default none.
        """
        return 0, 0


def method(part: Any, name: str) -> Callable[..., Any]:
    """A method of `LayerPart`; parts from outside that are not one have its default."""
    return getattr(part, name, None) or partial(getattr(LayerPart, name), part)


def keys_seen(sequence: int, window: int | None, *, bidirectional: bool) -> float:
    """Mean number of keys that a query of a row sees; bidirectional: half of the window on each side of the query."""
    if not bidirectional:
        window = min(window or sequence, sequence)
        return window - window * (window - 1) / (2 * sequence)
    if window is None:
        return sequence
    half = min(window // 2, sequence - 1)
    return 1 + 2 * half - half * (half + 1) / sequence
