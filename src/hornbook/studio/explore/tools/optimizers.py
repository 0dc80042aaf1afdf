"""Adaptive optimizers: the trainer's update rules on two values, whose loss is a surface, and on a small model."""

from collections.abc import Callable
from itertools import pairwise, takewhile
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from hornbook.errors import UsageError
from hornbook.optim.config.optim import AnyOptimizer
from hornbook.optim.config.rule import ITEM_BYTES
from hornbook.settings.fields import Config
from hornbook.studio.explore.explorer import ENGLISH, Preset, explorer, slider
from hornbook.studio.explore.recipes import SMALL_STEPS, small_recipe
from hornbook.studio.explore.views import Answer, Curves, Line, Table

Kind = Literal[
    "sgd",
    "adagrad",
    "rmsprop",
    "adam",
    "adamw",
    "adamw8bit",
    "lion",
    "adafactor",
    "lamb",
    "muon",
    "soap",
    "schedule_free",
]
MATRIX = (4096, 4096)
OPTIMIZER: TypeAdapter[Any] = TypeAdapter(AnyOptimizer)


class Surface(NamedTuple):
    """A loss of two values: `floor(x) + curve (y - valley(x))^2`, with its minimum 0."""

    floor: Callable[[Any], Any]
    curve: float
    valley: Callable[[Any], Any]
    start: tuple[float, float]
    minimum: tuple[float, float]
    reach: tuple[float, float]
    """Values of x that are drawn."""

    def loss(self, x: Any, y: Any) -> Any:
        """Loss at numbers, arrays or tensors."""
        return self.floor(x) + self.curve * (y - self.valley(x)) ** 2

    def inside(self, path: list[tuple[float, float]]) -> list[tuple[float, float]]:
        """The places of a path before its loss is a thousand times that of the start, or no number."""
        most = 1000 * float(self.loss(*self.start))
        return list(takewhile(lambda place: self.loss(*place) <= most, path))

    def level(self, loss: float) -> Line:
        """The closed curve on which the loss has this value."""
        inside = np.linspace(*self.reach, 10_001)
        first, *_, last = inside[self.floor(inside) <= loss]
        x = (first + last) / 2 - (last - first) / 2 * np.cos(np.linspace(0, np.pi, 61))  # close together at both ends
        away = np.sqrt(np.maximum(loss - self.floor(x), 0) / self.curve)
        lower, upper = self.valley(x) - away, self.valley(x) + away
        around = [*zip(x, lower, strict=True), *zip(x[::-1], upper[::-1], strict=True), (x[0], lower[0])]
        return Line(name=f"loss {loss:g}", x=[float(each) for each, _ in around], y=[float(each) for _, each in around])


SURFACES: dict[str, Surface] = {
    "ravine": Surface(lambda x: 0.01 * x**2, 1.0, lambda x: 0 * x, (-8.0, 1.5), (0.0, 0.0), (-18.0, 18.0)),
    "banana": Surface(lambda x: (1 - x) ** 2, 100.0, lambda x: x**2, (-1.2, 1.0), (1.0, 1.0), (-1.8, 1.8)),
}


class OptimizersQuestion(Config):
    """Optimizers, a surface, and how they descend it."""

    kinds: tuple[Kind, ...] = ("sgd", "adamw", "lion", "muon")
    """The optimizers (`optim.kind`), each with its other settings by default."""
    surface: Literal["ravine", "banana"] = "ravine"
    """ravine: a hundred times steeper across than along; banana: Rosenbrock's curved valley."""
    rate: float = slider(0.1, 1e-4, 1.0, logarithmic=True)
    """The learning rate on the surface (`optim.lr`)."""
    decay: float = slider(0.0, 0.0, 1.0)
    """Decoupled weight decay (`optim.weight_decay`), which pulls towards 0."""
    noise: float = slider(0.0, 0.0, 2.0)
    """Standard deviation of noise in each gradient, as rows of a batch cause it."""
    steps: int = slider(100, 10, 500)
    """Steps on the surface."""


def configs(question: OptimizersQuestion) -> dict[str, Any]:
    """The settings of each optimizer on the surface."""
    words = {"lr": question.rate, "weight_decay": question.decay}
    return {kind: OPTIMIZER.validate_python({"kind": kind, **words}) for kind in question.kinds}


def _levels(surface: Surface) -> list[Line]:
    most = float(surface.loss(*surface.start))
    return [surface.level(round(most * share, 2)) for share in (0.1, 0.4, 1.0)]


def _measure(question: OptimizersQuestion) -> Answer:
    """Paths by the trainer's update rules; the recipe `tiny`, narrow, learns a text with each optimizer's own rate."""
    from hornbook.studio.explore.real import losses_of, path_of

    surface = SURFACES[question.surface]
    places = {
        name: surface.inside(path_of(optim, surface.loss, surface.start, question.steps, question.noise))
        for name, optim in configs(question).items()
    }
    rows = list[list[Any]]()
    for name, path in places.items():
        losses = [float(surface.loss(*place)) for place in path]
        length = sum(float(np.hypot(x1 - x0, y1 - y0)) for (x0, y0), (x1, y1) in pairwise(path))
        low = next((step for step, loss in enumerate(losses) if loss <= losses[0] / 100), None)
        rows.append([name, len(path) - 1, losses[-1], low, length])
    trained = {kind: OPTIMIZER.validate_python({"kind": kind}) for kind in question.kinds}
    rates = {kind: [optim.lr] * SMALL_STEPS for kind, optim in trained.items()}
    learned = {kind: losses_of(small_recipe(), optim, ENGLISH, rates[kind]) for kind, optim in trained.items()}
    return Answer(
        paths=Curves(
            title=f"Paths of {question.steps} steps",
            note=f"x to the right, y upwards; all start at {surface.start}, and the minimum is at {surface.minimum}.",
            curves=[Line(name=name, x=[x for x, _ in path], y=[y for _, y in path]) for name, path in places.items()]
            + _levels(surface),
            x="x",
            x_unit="",
        ),
        ends=Table(
            title="Where they end",
            note="A path ends before its loss is a thousand times that of the start.",
            columns={"optimizer": None, "steps": "count", "loss": "", "steps to a hundredth": "count", "way": ""},
            rows=rows,
        ),
        model=Curves(
            title="Loss of a small model",
            note="The recipe `tiny` learns a paragraph by heart, with each optimizer's default learning rate.",
            curves=[Line(name=name, x=list(range(SMALL_STEPS)), y=losses) for name, losses in learned.items()],
            x="steps",
        ),
    )


@explorer(
    "Adaptive optimizers",
    asks="Which way does each optimizer take, and what does it remember for that?",
    code=("optim.config.adamw_config:AdamWRule", "optim.config.optim:AdamW"),
    presets=(
        Preset("Rosenbrock's valley", {"surface": "banana", "rate": 0.003, "steps": 500}),
        Preset("Noisy gradients", {"kinds": "sgd,adamw,schedule_free", "noise": 0.5, "steps": 300}),
    ),
    settings=lambda question: {"optim.kind": question.kinds[0], "optim.lr": question.rate},
    measure=_measure,
)
def optimizers(question: OptimizersQuestion) -> Answer:
    """Gradient descent moves fast where the surface is steep and slowly where it is flat. Adaptive optimizers divide
    each gradient by its usual size, so that flat directions move as fast as steep ones; Lion and Muon keep only the
    direction. "Run it for real" lets the trainer's own update rules descend the surface, and train a small model."""
    if not question.kinds:
        raise UsageError("kinds is empty: choose an optimizer, such as adamw")
    surface, rows = SURFACES[question.surface], list[list[Any]]()
    for kind, optim in configs(question).items():
        state = [each for each in optim.rule_for("matrix", MATRIX).state_tensors(MATRIX) if not each.is_parameter]
        size = sum(prod(each.shape(MATRIX)) * ITEM_BYTES[each.dtype] for each in state)
        rows.append([kind, size / prod(MATRIX), ", ".join(each.name for each in state)])
    return Answer(
        surface=Curves(
            title="The surface, by lines of equal loss",
            note=f"The start is at {surface.start}, the minimum at {surface.minimum}.",
            curves=[
                *_levels(surface),
                Line(name="start", x=[surface.start[0]], y=[surface.start[1]], points=True),
                Line(name="minimum", x=[surface.minimum[0]], y=[surface.minimum[1]], points=True),
            ],
            x="x",
            x_unit="",
        ),
        rules=Table(
            title="What they remember of a matrix of 4,096 by 4,096",
            columns={"optimizer": None, "bytes per value": "", "state": None},
            rows=rows,
        ),
    )
