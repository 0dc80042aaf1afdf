"""A decoder of a given number of parameters: layers and width in the proportion that published models have."""

from math import log, sqrt

from hornbook.model.config.model_config import ModelConfig
from hornbook.model.config.parameter_count import parameter_counts
from hornbook.plan.planner import vocabulary
from hornbook.plan.scaling.laws import Parameters
from hornbook.settings.recipe import Recipe

ASPECT = 128
"""Width over layers: 85 to 150 in the models of GPT-3 and LLaMA from a billion parameters on."""
OFF_ASPECT = 0.05
"""What a proportion that is off by a factor e counts, beside a size that is."""
STEPS = ((256, 32, 32), (1024, 64, 64), (4096, 256, 64), (1 << 62, 1024, 128))
"""(width below which, what it is a multiple of, width of a head): tensor ranks divide the heads of wide models."""
LEAST = 2
"""Layers of the smallest model."""


def shaped(recipe: Recipe, parameters: float, counts: Parameters = "all") -> Recipe:
    """The recipe with a model of about so many parameters; what it says of the kinds of parts stays as it is."""
    vocab = vocabulary(recipe)
    per_layer = _layer(recipe.model)
    layers = (parameters / (per_layer * ASPECT**2)) ** (1 / 3)
    found = [
        _model(recipe.model, count, width)
        for count in _depths(layers)
        for width in _widths(parameters, count, per_layer, vocab if counts == "all" else 0)
    ]

    def fault(model: ModelConfig) -> float:
        proportion = abs(log(model.width / model.layers / ASPECT))
        return abs(log(count_as(model, vocab, counts) / parameters)) + OFF_ASPECT * proportion

    best = min(found, key=fault)
    return recipe.model_copy(update={"model": best})


def count_as(model: ModelConfig, vocab: int, counts: Parameters) -> int:
    """Parameters of a model as a law counts them."""
    parts = parameter_counts(model, vocab)
    around = 0 if counts == "all" else parts["embedding"] + parts["positions"] + parts["head"]
    return sum(parts.values()) - around


def _layer(model: ModelConfig) -> float:
    """Parameters of a layer over the square of its width."""
    narrow, wide = (count_as(_model(model, LEAST, width), 0, "without embeddings") for width in (1024, 2048))
    return (wide - narrow) / (2048**2 - 1024**2) / LEAST


def _depths(layers: float) -> list[int]:
    """Numbers of layers near this one, even or multiples of four where a pipeline may divide them."""
    every = 1 if layers < 8 else 2 if layers < 24 else 4
    low, high = int(layers * 0.8) // every * every, int(layers * 1.2) + every
    return [count for count in range(low, high + 1, every) if count >= LEAST] or [LEAST]


def _widths(parameters: float, layers: int, per_layer: float, vocab: int) -> list[int]:
    """Widths just below and above the one at which `layers` layers and an embedding have so many."""
    a, b = per_layer * layers, float(vocab)
    width = (sqrt(b * b + 4 * a * parameters) - b) / (2 * a)
    step = _step(width)[0]
    below = max(int(width / step), 1) * step
    return [below, below + step]


def _step(width: float) -> tuple[int, int]:
    """(what such a width is a multiple of, width of a head)."""
    return next((step, head) for limit, step, head in STEPS if width < limit)


def _model(model: ModelConfig, layers: int, width: int) -> ModelConfig:
    tree = model.model_dump() | {"layers": layers, "width": width, "heads": width // _step(width)[1]}
    return ModelConfig.model_validate(tree)
