"""What a part of a model says about itself: the class it builds, its parameters, its operations, its conditions.

A part is attention, an MLP, a norm, positions or a head; its configuration is the only place that speaks of it. Parts
from outside the package have the same methods: `build` and `num_parameters` they must have, the rest has the defaults
of `LayerPart`. Everything but `build` is arithmetic on settings.
"""

import importlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

from hornbook.settings.fields import Config

Problems = Iterator[tuple[str, str]]
"""(dotted key below `model`, what is wrong and the remedy) of what no single field can see."""


class ModelView(Protocol):
    """What a part reads of the model's configuration; in a layer, as that layer sees it (`ModelConfig.layer`)."""

    kind: Literal["decoder", "encoder", "encoder_decoder"]
    width: int
    heads: int
    embedding: Any
    norm: Any
    position: Any
    init: Any

    @property
    def head_dim(self) -> int: ...

    @property
    def kv_heads(self) -> int: ...

    @property
    def hidden(self) -> int: ...


class Part(Config):
    """What all parts have."""

    builder: ClassVar[str]
    """`module:name` below `hornbook.model` of the class or function that makes the part's module."""

    def make(self, *args: Any) -> Any:
        """The builder's result. It is imported only here, when a model is built: configurations import no torch."""
        module, _, name = self.builder.partition(":")
        return getattr(importlib.import_module(f"hornbook.model.{module}"), name)(*args)


class LayerPart(Part):
    """Attention or an MLP. `model` is the configuration of the model as the part's layer sees it."""

    def build(self, model: ModelView, layer: int) -> Any:
        """The module of layer `layer`."""
        return self.make(model, layer)

    def num_parameters(self, model: ModelView) -> int:
        """Trained values of one layer."""
        raise NotImplementedError

    def num_matmul_weights(self, model: ModelView) -> int:
        """Weights of one layer that each position is multiplied by; by default all of its parameters."""
        return self.num_parameters(model)

    def attention_flops(self, model: ModelView, sequence: int) -> tuple[float, float]:
        """Operations of a token in a row of `sequence` tokens, forward and backward, besides products with weights.

        Over the pairs of query and key that see each other, and over all pairs; by default none.
        """
        del model, sequence
        return 0, 0

    def problems(self, model: ModelView) -> Problems:
        """Settings that do not go together in this layer; by default none."""
        del model
        return iter(())


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
