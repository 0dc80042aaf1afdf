"""The base of all objectives, those of other packages too (docs/parts.md).

An objective is one class that says everything about itself: its settings, and how its batches are built.
"""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal, NamedTuple

from hornbook.settings.fields import Config, named

Start = Literal["pad", "end"]
Family = Literal["decoder", "encoder", "encoder-decoder"]


class Noise(NamedTuple):
    """How a piece of text becomes the source and the target of an encoder-decoder."""

    rate: float
    """Share of tokens that is taken out."""
    mean_span: float
    """Mean length of a span in tokens; inf: the end of the text is taken out as one span."""
    start: Start
    """First token of the decoder's input."""
    mode: Literal["R", "S", "X"] | None = None
    """Mode token that the source begins with."""
    infill: bool = False
    """One mask for each span and the whole text as target, else a sentinel for each span."""
    permute: bool = False
    """Shuffle the sentences of the source."""


class Component(NamedTuple):
    """A simple objective in a mixture."""

    weight: float
    """Share of the rows; those of all components sum to 1."""
    key: str
    """Dotted key of its settings, for errors."""
    objective: "Objective"
    noise: Noise | None = None
    """Of pairs; None: rows of text, which `objective.transform` changes."""

    @property
    def family(self) -> Family:
        """The models it is for."""
        return self.objective.family if self.noise is None else "encoder-decoder"


class Objective(Config):
    """Base of all objectives. By itself causal: a subclass overrides `transform`, or `build` for batches of its own.

    Batches are a pure function of (seed, source, row, epoch); `train.sequence` tokens of text are one row.
    """

    family: ClassVar[Family] = "decoder"
    """The models that rows of text of this objective are for."""
    predicts_labels: ClassVar[bool] = False
    """Labels of a labelled set are predicted, not tokens."""

    def transform(self, context: Any, key: str) -> Any:
        """The `ObjectiveTransform` that changes causal rows in place; None leaves them.

        context: `hornbook.data.batch_builder.BuildContext`. key: dotted key of these settings, for errors.
        """
        del context, key

    def build(self, context: Any) -> Any:
        """The `BatchBuilder` of this objective's batches.

        Raises UsageError where the tokenizer lacks tokens that it needs, rows are too short, or spans too long.
        """
        return named("data.objectives.objective:build_components")(context, list(self.components()))

    def components(self, key: str = "data.objective", weight: float = 1.0) -> Iterator[Component]:
        """This objective as a mixture of simple ones, which share the rows of `weight`."""
        yield Component(weight, key, self)

    def training_corpus(self, corpus: Any, seed: int) -> Any:
        """The `Corpus` that training rows are cut from."""
        del seed
        return corpus

    @property
    def decoder_start(self) -> Start | None:
        """First token of the decoder's input: in a mixture that of most rows; None where there are no pairs."""
        noise = max(self.components(), key=lambda each: each.weight).noise
        return None if noise is None else noise.start

    @property
    def evaluation_key(self) -> str:
        """The settings that a validation loss depends on, as text: losses with equal texts can be compared."""
        return self.model_dump_json()
