"""Configuration of the teacher of a distillation: a model that a smaller one, or the next one, learns from."""

from typing import Annotated, Literal

from pydantic import Field

from hornbook.settings.fields import Config, Count, LocalPath, Number


class NoTerm(Config):
    """The loss has no such term."""

    kind: Literal["none"] = "none"


class TopTeacher(Config):
    """Distillation (arXiv 1503.02531); by the model the run starts from it is learning without forgetting."""

    kind: Literal["top"] = "top"
    path: LocalPath = Field(min_length=1)
    """The teacher: a run, a checkpoint or a model folder, with the tokenizer of the data."""
    top: Count = Field(default=32, ge=1)
    """Its likeliest tokens that are kept with their probabilities, 6 bytes each (8 above 65,536 tokens); all others are
    one class, which has the rest. They are computed once and kept beside the data."""
    temperature: Number = Field(default=1.0, gt=0)
    """What the logits of both are divided by; the term is multiplied by its square."""
    weight: Number = Field(default=1.0, gt=0)
    """Weight of KL(teacher || model) beside the loss; Hinton's share a of it is a weight of a / (1 - a)."""


class RelationTeacher(Config):
    """Distillation of how a teacher relates tokens (MiniLM, arXiv 2002.10957 and 2012.15828), whatever its width.

    The teacher computes beside the model in every step: its weights take memory, and its forward pass time.
    """

    kind: Literal["relations"] = "relations"
    path: LocalPath = Field(min_length=1)
    """The teacher: a run, a checkpoint or a model folder, with the tokenizer of the data."""
    of: list[Literal["attention", "query", "key", "value", "hidden"]] = Field(
        default=["attention", "value"], min_length=1
    )
    """Relations that layers of the model learn: attention (queries with keys), or vectors with themselves."""
    layer: Count | None = Field(default=None, ge=1)
    """The teacher's layer, counted from 1; by default its last. In large teachers an earlier one may teach better."""
    layers: Count = Field(default=1, ge=1)
    """Layers of the model that learn: 1 is its last, more are evenly spread up to it. Each learns from the layer that
    lies as deep in the teacher up to `layer` (TinyBERT, arXiv 1909.10351, section 3.1); the term is their mean."""
    heads: Count = Field(default=8, ge=1)
    """Relations of each kind: the vectors of both models are cut into so many parts, which must divide them."""
    weight: Number = Field(default=1.0, gt=0)
    """Weight of the sum of KL(teacher || model) of the relations, in nats a token, beside the loss."""

    def pairs(self, model: int, teacher: int) -> list[tuple[int, int]]:
        """(layer of the model, layer of the teacher), from 0, that are compared, of models with so many layers."""
        last = teacher if self.layer is None else self.layer
        shares = [(number * model, number * last) for number in range(1, self.layers + 1)]
        return [(-(-ours // self.layers) - 1, -(-theirs // self.layers) - 1) for ours, theirs in shares]


TeacherConfig = Annotated[NoTerm | TopTeacher | RelationTeacher, Field(discriminator="kind")]
