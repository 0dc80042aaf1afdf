"""Configuration of replaced-token detection (ELECTRA, Clark et al. 2020, arXiv 2003.10555), and of heads as a whole.

A small generator learns to predict masked tokens; what it draws in their place is the input of the model, the
discriminator, whose head tells of every token whether it was replaced. The generator is there in training alone.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hornbook.model.config.head_config import HeadPart, LabelHeadConfig, LMHead, MaskedHead, transform_weights
from hornbook.model.config.mlp_config import Activation
from hornbook.model.config.part import Model, Part, Problems, Rows, Weight, placed
from hornbook.model.config.position_config import NoPositions
from hornbook.settings.fields import Number


class NoGenerator(Part):
    """The discriminator alone, as `hornbook export` writes it: it tells replaced tokens, and does not learn to."""

    kind: Literal["none"] = "none"

    def of(self, _model: Model) -> None:
        """No model."""


class SmallerGenerator(Part):
    """As deep as the model, and narrower; the embedding, its positions, types and norm are the model's."""

    kind: Literal["smaller"] = "smaller"
    share: Number = Field(default=0.25, gt=0, le=1)
    """Its heads, width and inner width over the model's; the paper finds a quarter to a half best (section 3.2)."""
    activation: Activation = "gelu"
    """Activation of its head."""

    def of(self, model: Model) -> Model:
        """Its configuration: what it reads are the vectors that the model's first block would read."""
        heads = max(round(self.share * model.heads), 1)
        width = heads * model.head_dim
        plain = {"scale": 1.0, "norm": False, "types": 0}
        projected = {"width": model.width, "bias": True} if width != model.width else {}
        return model.model_copy(
            update={
                "width": width,
                "heads": heads,
                "embedding": model.embedding.model_copy(update=plain | projected),
                "position": model.position if model.position.kind == "rope" else NoPositions(),
                "mlp": model.mlp.model_copy(update={"hidden": max(round(heads / model.heads * model.hidden), 1)}),
                "head": MaskedHead(activation=self.activation),
            }
        )

    def alone(self, model: Model) -> Model:
        """The same as a masked model of its own, which has the model's embedding, positions, types and norm."""
        small = self.of(model)
        own = {"width": model.width, "bias": True, "projected": "last"} if small.width != model.width else {}
        return small.model_copy(
            update={"embedding": model.embedding.model_copy(update=own), "position": model.position}
        )

    def problems(self, model: Model) -> Problems:
        if abs((heads := self.share * model.heads) - max(round(heads), 1)) > _ROUNDED:
            text = f"{self.share:g} of model.heads {model.heads} is {heads:g}, and heads are whole"
            shares = ", ".join(f"{number / model.heads:.3g}" for number in range(1, min(model.heads, 8) + 1))
            yield "head.generator.share", f"{text}: take {shares}, or other model.heads"
        if model.attention.kind != "full" or model.mlp.kind not in ("mlp", "glu") or model.first or model.pattern:
            text = 'a generator has layers of the attention "full" and the mlp "mlp" or "glu", all alike'
            yield "head.generator", f"{text}: take these, without model.first and model.pattern"
        elif model.kv_heads != model.heads or model.attention.head_dim is not None:
            text = "a share of the heads is not one of key-value heads, or of heads of a width of their own"
            yield "attention", f"{text}: leave kv_heads and head_dim out"
        if model.position.kind in ("alibi", "relative"):
            text = f'scores by distance ("{model.position.kind}") are those of all heads, and a generator has fewer'
            yield "position", f'{text}: take "learned", "rope" or "sinusoidal"'


_ROUNDED = 0.05
"""So far from a whole number of heads a share may be: a third is written 0.333."""

GeneratorConfig = Annotated[NoGenerator | SmallerGenerator, Field(discriminator="kind")]


class ReplacedHead(HeadPart):
    """Tells of each token whether it was replaced: a projection, an activation, and one number, whose sigmoid it is."""

    builder = "build_model:replaced_head"
    kind: Literal["replaced"] = "replaced"
    activation: Activation = "gelu"
    """Activation of the projection."""
    generator: GeneratorConfig = SmallerGenerator()
    """What replaces tokens in training."""
    outputs: ClassVar = 1
    """Numbers of each token."""

    def generator_of(self, model: Model) -> Model | None:
        return self.generator.of(model)

    def weights(self, model: Model, _vocab: int) -> list[Weight]:
        before = placed("before", transform_weights(model, model.width, bias=True, norm=False))
        return [Weight("weight", (1, model.width), "head"), Weight("bias", (1,), "vector"), *before]

    def num_outputs(self, _vocab: int) -> int:
        return self.outputs

    def saved_bytes(self, model: Model, _vocab: int, rows: Rows, _targets: int) -> int:
        """Of every token: the projection's input and matrix, what the activation keeps, what the last product reads in
        float32; logits, labels and weights."""
        plain = Rows(rows.rows, rows.sequence, rows.itemsize)
        shared = rows.itemsize == 4 and self.activation == "relu"  # the activation keeps its result
        read = 0 if shared else 4 * rows.tokens * model.width
        return 2 * plain.stream(model) + plain.cast(model.width**2) + read + 12 * rows.tokens

    def problems(self, model: Model) -> Problems:
        if model.kind != "encoder":
            text = f'replaced tokens are told by a model that sees both ways, and model.kind is "{model.kind}"'
            yield "head.kind", f'{text}: take "encoder", or another head and objective'
        if model.embedding.width is not None and self.generator_of(model) is not None:
            text = "the generator reads vectors as wide as the model: leave it out"
            yield "embedding.width", f'{text}, or take model.head.generator.kind = "none"'
        yield from self.generator.problems(model)


HeadConfig = Annotated[LMHead | MaskedHead | ReplacedHead | LabelHeadConfig, Field(discriminator="kind")]
