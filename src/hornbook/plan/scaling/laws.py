"""Scaling laws: loss and best size for a compute budget, of `laws.toml` or of one's own runs.

All count training compute as C = 6 N D, where N is what the law counts: all parameters, or those without embeddings.
"""

import math
import tomllib
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, TypeAdapter

from hornbook.errors import UsageError
from hornbook.settings.fields import Config

Parameters = Literal["all", "without embeddings"]
"""What N counts."""
OPERATIONS = 6.0
"""Of training, per parameter and token: two forward, four backward."""
CONSTANTS = ("E", "A", "B", "alpha", "beta")
SERVING = 2.0
"""Of a served token, per parameter."""


class Allocation(Config):
    """How a law spends a budget."""

    parameters: float
    """As the law counts them."""
    tokens: float
    loss: float | None = None
    """Nats per token of the law's text; None where the law says nothing of it."""

    @property
    def ratio(self) -> float:
        """Tokens per parameter."""
        return self.tokens / self.parameters

    @property
    def compute(self) -> float:
        """Operations of training, 6 N D."""
        return OPERATIONS * self.parameters * self.tokens


class Law(Config):
    """What all laws have."""

    name: str
    title: str = ""
    parameters: Parameters
    source: str

    def loss(self, parameters: float, tokens: float) -> float | None:
        """Expected loss in nats per token; None where the law says nothing of it."""
        raise NotImplementedError

    def best_size(self, compute: float) -> float:
        """N of least loss for 6 N D = compute."""
        raise NotImplementedError

    def optimum(self, compute: float) -> Allocation:
        """The allocation of least loss for 6 N D = compute."""
        return self.at(size := self.best_size(compute), compute / OPERATIONS / size)

    def at(self, parameters: float, tokens: float) -> Allocation:
        """An allocation that somebody else chose, with the loss expected of it."""
        return Allocation(parameters=parameters, tokens=tokens, loss=self.loss(parameters, tokens))


class SumLaw(Law):
    """L = E + A / N^alpha + B / D^beta (Hoffmann et al. 2022, arXiv 2203.15556, equation 2)."""

    kind: Literal["sum"] = "sum"
    E: float = Field(ge=0)
    A: PositiveFloat
    B: PositiveFloat
    alpha: PositiveFloat
    beta: PositiveFloat

    @property
    def exponent(self) -> float:
        """a of N ~ C^a."""
        return self.beta / (self.alpha + self.beta)

    def loss(self, parameters: float, tokens: float) -> float:
        """See `Law`."""
        return self.E + self.A * parameters**-self.alpha + self.B * tokens**-self.beta

    def best_size(self, compute: float) -> float:
        """Where alpha A / N^alpha = beta B / D^beta (equation 4)."""
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        return ratio * (compute / OPERATIONS) ** self.exponent

    def tokens_for(self, parameters: float, loss: float) -> float:
        """Tokens after which a model has this loss; infinite where no number of them is enough."""
        left = loss - self.E - self.A * parameters**-self.alpha
        return math.inf if left <= 0 else (self.B / left) ** (1 / self.beta)

    def served(self, loss: float, tokens: float) -> Allocation:
        """The model of a loss above E, of least operations over training and `tokens` that it serves.

        The minimum of 6 N D + 2 N tokens at a fixed loss (Sardana et al. 2024, arXiv 2401.00448, equation 3).
        """

        def cost(log: float) -> float:
            size = math.exp(log)
            return size * (OPERATIONS * self.tokens_for(size, loss) + SERVING * tokens)

        least = (self.A / (loss - self.E)) ** (1 / self.alpha)  # a smaller model never comes so far
        best = least * (1 + self.alpha / self.beta) ** (1 / self.alpha)  # where nothing is served
        size = math.exp(minimum(cost, math.log(least) + 1e-9, math.log(best)))
        return self.at(size, self.tokens_for(size, loss))


class RepeatedLaw(SumLaw):
    """The same over text that is read several times, and models that outgrow it (arXiv 2305.16264, section 3.1)."""

    kind: Literal["repeated"] = "repeated"  # pyright: ignore[reportIncompatibleVariableOverride]
    data: PositiveFloat
    """R_D*: repetitions after which a further one is worth 1/e of new text."""
    model: PositiveFloat
    """R_N*: the same of parameters beyond what the text needs."""

    def size_for(self, tokens: float) -> float:
        """N for which these tokens are the best number."""
        ratio = (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))
        return ratio * (tokens * ratio) ** (self.beta / self.alpha)

    def repeated_loss(self, parameters: float, tokens: float, unique: float) -> float:
        """Loss of `tokens`, read from `unique` ones."""
        useful = min(parameters, self.size_for(min(unique, tokens)))
        return self.loss(_worth(useful, parameters / useful - 1, self.model), self.worth(tokens, unique))

    def worth(self, tokens: float, unique: float) -> float:
        """New tokens that `tokens`, read from `unique` ones, are worth."""
        unique = min(unique, tokens)
        return _worth(unique, tokens / unique - 1, self.data)

    def constrained(self, compute: float, unique: float) -> Allocation:
        """The allocation of least loss for 6 N D = compute, where there are `unique` tokens to read."""
        free = math.log(self.best_size(compute))

        def loss(log: float) -> float:
            return self.repeated_loss(math.exp(log), compute / OPERATIONS / math.exp(log), unique)

        size = math.exp(minimum(loss, free - 5, free + 5))
        tokens = compute / OPERATIONS / size
        return Allocation(parameters=size, tokens=tokens, loss=self.repeated_loss(size, tokens, unique))


def _worth(first: float, repetitions: float, decay: float) -> float:
    """What `first` units, and `repetitions` times as many again, are worth in new ones."""
    return first * (1 + decay * -math.expm1(-max(repetitions, 0.0) / decay))


class FittedLaw(SumLaw):
    """A law of one's own runs, with the bootstrap samples that its intervals come from."""

    kind: Literal["fitted"] = "fitted"  # pyright: ignore[reportIncompatibleVariableOverride]
    samples: tuple[tuple[float, float, float, float, float], ...] = Field(min_length=1)
    """(E, A, B, alpha, beta) of runs drawn with replacement."""
    compute: tuple[float, float]
    """Least and most operations of the runs: beyond, the law extrapolates."""

    def laws(self) -> Iterator[SumLaw]:
        """The law of each sample."""
        for values in self.samples:
            constants = dict(zip(CONSTANTS, values, strict=True))
            yield SumLaw(name=self.name, parameters=self.parameters, source=self.source, **constants)

    def loss_interval(self, parameters: float, tokens: float) -> tuple[float, float]:
        """90 % interval of the loss."""
        return interval(each.loss(parameters, tokens) for each in self.laws())


class PowerLaw(Law):
    """N = size (C / unit)^exponent alone."""

    kind: Literal["power"] = "power"
    size: PositiveFloat
    exponent: PositiveFloat
    unit: PositiveFloat = 1.0
    """FLOPs in which the law counts compute."""

    def loss(self, parameters: float, tokens: float) -> float | None:  # noqa: ARG002
        """None: the law says nothing of it."""
        return None

    def best_size(self, compute: float) -> float:
        """See `Law`."""
        return self.size * (compute / self.unit) ** self.exponent


class KaplanLaw(PowerLaw):
    """L = ((Nc / N)^(alpha_N / alpha_D) + Dc / D)^alpha_D (Kaplan et al. 2020, arXiv 2001.08361, equation 1.5).

    The constants of `laws.toml` are those of its joint fit (table 2), not those of N or D alone (equations 1.1, 1.2).
    """

    kind: Literal["kaplan"] = "kaplan"  # pyright: ignore[reportIncompatibleVariableOverride]
    Nc: PositiveFloat
    alpha_N: PositiveFloat
    Dc: PositiveFloat
    alpha_D: PositiveFloat

    def loss(self, parameters: float, tokens: float) -> float:
        """See `Law`."""
        return ((self.Nc / parameters) ** (self.alpha_N / self.alpha_D) + self.Dc / tokens) ** self.alpha_D


def interval(values: Iterable[float]) -> tuple[float, float]:
    """Ends of the 90 % interval of samples, between which they are interpolated."""
    ordered = sorted(values)
    ends = []
    for share in (0.05, 0.95):
        place = share * (len(ordered) - 1)
        low = int(place)
        ends.append(ordered[low] + (place - low) * (ordered[min(low + 1, len(ordered) - 1)] - ordered[low]))
    return ends[0], ends[1]


AnyLaw = Annotated[SumLaw | RepeatedLaw | FittedLaw | PowerLaw | KaplanLaw, Field(discriminator="kind")]


@cache
def published_laws() -> tuple[AnyLaw, ...]:
    """The laws of `laws.toml`."""
    text = Path(__file__).with_name("laws.toml").read_text(encoding="utf-8")
    return tuple(TypeAdapter(list[AnyLaw]).validate_python(tomllib.loads(text)["law"]))


def law_named(name: str) -> AnyLaw:
    """A published law. Raises UsageError with the known names."""
    for law in published_laws():
        if law.name == name:
            return law
    raise UsageError(f"there is no scaling law {name!r}; known are {', '.join(law.name for law in published_laws())}")


def data_constrained() -> RepeatedLaw:
    """The law of text that repeats."""
    return next(law for law in published_laws() if isinstance(law, RepeatedLaw))


def minimum(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a function with one minimum between `low` and `high` has it, by golden section.

    Values may be infinite at the low end. The place is exact to about 1e-8: near a minimum values differ no more.
    """
    golden = (math.sqrt(5) - 1) / 2
    left, right = high - golden * (high - low), low + golden * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > 1e-9 * max(abs(low), abs(high), 1.0):
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - golden * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + golden * (high - low)
            at_right = function(right)
    return (low + high) / 2
