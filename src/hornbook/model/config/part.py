"""Descriptions of the parts of a model: the class that a part builds, its weights, its operations, its conditions.

A part is attention, an MLP, a norm, positions or a head; its configuration is the only place that speaks of it. From
its list of weights follow numbers of parameters, products, operations, what ranks hold, and how they divide it. Parts
from outside the package have the same methods: `build`, and `weights` or `num_parameters`, they must have, the rest has
the defaults of `LayerPart`. Everything but `build` is arithmetic on settings.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
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


Unit = Literal["heads", "kv_heads", "hidden", "vocabulary"]
"""Unit that stays whole on a rank: a head; a key-value head, which several ranks hold where there are more ranks than
heads; one value of the inner width of an MLP; a token."""


class Cut(NamedTuple):
    """How tensor ranks divide a parameter; one that is not divided each rank holds whole."""

    dim: int
    unit: Unit
    units: int
    """Number of units in the dim."""
    is_input_shared: bool = False
    """Whether the part itself hands the input of this linear layer to all ranks."""


class Weight(NamedTuple):
    """A parameter, by its name within its part, or of the model within that."""

    name: str
    shape: tuple[int, ...]
    """[outputs, inputs] of a matrix, [experts, outputs, inputs] of the matrices of experts."""
    role: str = "matrix"
    """As `hornbook.model.build_model.parameter_roles` has it."""
    cut: Cut | None = None
    uses: int = 1
    """Times that each token is multiplied, of experts."""
    joined: bool = False
    """Whether its product is one with that of the matrix listed before it."""
    is_per_head: bool = False
    """Whether each head applies it, so that each tensor rank has a part of its gradient."""

    @property
    def size(self) -> int:
        """Values."""
        return prod(self.shape)

    @property
    def experts(self) -> int:
        """Experts that it is the matrices of; 0: it is no matrix of experts."""
        return self.shape[0] if len(self.shape) == 3 else 0

    @property
    def layer(self) -> str:
        """Name of the linear layer whose matrix it is; "" where it is none."""
        is_linear = self.role == "matrix" and len(self.shape) == 2 and not self.name.endswith("router.weight")
        return self.name.removesuffix(".weight") if is_linear and self.name.endswith(".weight") else ""

    def of_rank(self, tensor: int) -> "Weight":
        """The share of one of `tensor` ranks; the larger share where units do not divide evenly."""
        if self.cut is None or tensor == 1:
            return self
        dim, _, units, _ = self.cut
        size = self.shape[dim] // units * -(-units // tensor)
        return self._replace(shape=(*self.shape[:dim], size, *self.shape[dim + 1 :]))

    def size_of_rank(self, tensor: int, expert: int) -> int:
        """Values of one of so many ranks of both axes: of what does not divide evenly, the larger part."""
        size = self.of_rank(tensor).size
        return size // self.experts * -(-self.experts // expert) if self.experts else size


def linear(
    name: str, inputs: int, outputs: int, cut: Cut | None = None, *, bias: bool = False, joined: bool = False
) -> list[Weight]:
    """A linear layer; `cut` divides its outputs (dim 0), and its bias with them, or its inputs."""
    found = [Weight(f"{name}.weight", (outputs, inputs), cut=cut, joined=joined)]
    along = cut if cut is not None and cut.dim == 0 else None
    return [*found, Weight(f"{name}.bias", (outputs,), "vector", along)] if bias else found


def placed(name: str, weights: Iterable[Weight]) -> list[Weight]:
    """The weights of a part that is at `name`."""
    return [each._replace(name=f"{name}.{each.name}") for each in weights]


class Product(NamedTuple):
    """A product with weights that each token goes through; weights of one product count as one matrix."""

    inner: int
    """Values of a token that go in."""
    columns: int
    """Values that come out."""
    uses: int = 1
    """Times that each token is multiplied, of experts."""
    experts: int = 0
    """Matrices that the tokens are spread over; 0: there is one."""
    names: tuple[tuple[str, int], ...] = ()
    """(name within the part, outputs) of each of its weights; empty where they are not known."""

    @property
    def weights(self) -> int:
        """Weights that a token is multiplied by."""
        return self.inner * self.columns * self.uses


def products_of(weights: Iterable[Weight]) -> list[Product]:
    """Products of a token with matrices."""
    found = list[Product]()
    for each in weights:
        if each.role != "matrix" or len(each.shape) == 1:
            continue
        *_, columns, inner = each.shape
        names = ((each.name, columns),)
        if each.joined:
            columns, names = found[-1].columns + columns, found[-1].names + names
            found[-1] = found[-1]._replace(columns=columns, names=names)
        else:
            found.append(Product(inner, columns, each.uses, each.experts, names))
    return found


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


class WeightedPart(Part):
    """A part whose configuration lists its weights."""

    def weights(self, model: Model, /) -> list[Weight]:
        """Parameters; by default one of all `num_parameters`."""
        return [Weight("weight", (self.num_parameters(model),))]

    def num_parameters(self, model: Model, /) -> int:
        """Trained values; by default those of `weights`."""
        if type(self).weights is WeightedPart.weights:
            raise UsageError(f"the part {type(self).__name__} has no method `num_parameters`")
        return sum(each.size for each in self.weights(model))


def unknown_memory(part: Part) -> UsageError:
    """The error of a part that does not say what it keeps."""
    return UsageError(
        f"{type(part).__name__} does not say what it keeps for backward, so that the memory of a step cannot be "
        "predicted: `hornbook bench RECIPE` measures it"
    )


class LayerPart(WeightedPart):
    """Attention or an MLP of one layer."""

    scored: ClassVar[bool] = True
    """Whether attention has scores, to which positions may add theirs by distance."""

    def build(self, model: Model, layer: int, /) -> Any:
        """The module of layer `layer`."""
        return self.make(model, layer)

    def num_matmul_weights(self, model: Model, /) -> int:
        """Weights of one layer that each position is multiplied by: matrices, of experts those that a token uses."""
        matrices = (each for each in method(self, "weights")(model) if each.role == "matrix")
        return sum(each.size * each.uses // max(each.experts, 1) for each in matrices)

    def products(self, model: Model, /) -> list[Product]:
        """Products of a token with weights in one layer; of a part that lists none, one of `num_matmul_weights`."""
        known = products_of(method(self, "weights")(model))
        return known or [Product(model.width, -(-method(self, "num_matmul_weights")(model) // model.width))]

    def saved_bytes(self, _model: Model, _rows: Rows, /) -> int:
        """Bytes that one layer keeps for backward, all but its input."""
        raise unknown_memory(self)

    def of_rank(self, _model: Model, _ranks: int, /) -> Any:
        """The part as one of `ranks` tensor ranks computes it, in a model of its share of the heads; by default whole.

        Of what does not divide evenly it is the larger share.
        """
        return self

    def rotary_dims(self, _model: Model, /) -> int:
        """Dims of a head that rotary positions may turn; by default none."""
        return 0

    def attention_flops(self, _model: Model, _sequence: int, /) -> tuple[float, float]:
        """Operations of a token in a row of `sequence` tokens, forward and backward, besides products with weights.

        Over the pairs of query and key that see each other, and over all pairs; by default none.
        """
        return 0, 0


def method(part: Any, name: str, base: type[Part] = LayerPart) -> Callable[..., Any]:
    """A method of `base`; parts from outside that are not one have its default."""
    return getattr(part, name, None) or partial(getattr(base, name), part)


def keys_seen(sequence: int, window: int | None, *, bidirectional: bool) -> float:
    """Mean number of keys that a query of a row sees; bidirectional: half of the window on each side of the query."""
    if not bidirectional:
        window = min(window or sequence, sequence)
        return window - window * (window - 1) / (2 * sequence)
    if window is None:
        return sequence
    half = min(window // 2, sequence - 1)
    return 1 + 2 * half - half * (half + 1) / sequence
