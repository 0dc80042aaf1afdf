"""Configuration of heads: what is read from the last hidden states - tokens, labels, numbers, places.

A label sits on tokens. A text's label sits on one of them: the first where all tokens are seen (an encoder), the last
where only earlier ones are (a decoder). So every head is a projection of each token's hidden state, and what asks for
an answer are the weights of the tokens.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from hornbook.model.config.mlp import Activation
from hornbook.settings.fields import Config, Count, Number

# ---- Heads of language models


class LMHead(Config):
    """Projection to the vocabulary."""

    kind: Literal["lm"] = "lm"
    tied: bool = True
    """Share the matrix with the token embedding."""
    bias: bool = False
    """A shift of each token's logit: learned; of encoder-decoders fixed (BART's `final_logits_bias`)."""
    scale: Number = 1.0
    """Factor of the hidden states before it (T5 v1.0: 1 / sqrt(width))."""
    softcap: Number | None = Field(default=None, gt=0)
    """Logits z become softcap * tanh(z / softcap) (Gemma 2)."""


class MaskedHead(Config):
    """Projection, activation and norm before that to the vocabulary (BERT)."""

    kind: Literal["masked"] = "masked"
    tied: bool = True
    """Share the matrix with the token embedding."""
    bias: bool = True
    """A learned shift of each token's logit."""
    activation: Activation = "gelu"
    """Activation of the projection."""
    dense_bias: bool = True
    """Bias of the projection."""


# ---- Heads of labelled texts


class NoTransform(Config):
    """The hidden states as they are (GPT-2, LLaMA)."""

    kind: Literal["none"] = "none"


class DenseTransform(Config):
    """A projection and an activation (BERT's pooler), and a norm behind them if asked for (ModernBERT)."""

    kind: Literal["dense"] = "dense"
    activation: Literal["tanh"] | Activation = "tanh"
    """Activation of the projection."""
    bias: bool = True
    """Bias of the projection."""
    norm: bool = False
    """A norm of the model's kind behind the activation."""


TransformConfig = Annotated[NoTransform | DenseTransform, Field(discriminator="kind")]


class _LabelHead(Config):
    """What all heads of labelled texts have."""

    transform: TransformConfig = NoTransform()
    """What is done to the hidden states first."""
    bias: bool = True
    """A learned shift of each output."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on what the last projection reads."""

    def problems(self, family: str, norm: str) -> Iterator[tuple[str, str]]:
        """What no single field can see, given the kinds of model and norm: (key, what is wrong and the remedy)."""
        if family == "encoder_decoder":
            yield "kind", 'an encoder-decoder writes its answers as text: use "lm", or a model of one stack'
        if isinstance(self.transform, DenseTransform) and self.transform.norm and norm in ("none", "batch"):
            text = f'model.norm "{norm}" cannot stand behind the few tokens that carry labels'
            yield "transform.norm", f'{text}: set it to false, or use "layer" or "rms"'


def _distinct(labels: list[str]) -> list[str]:
    again = next((label for i, label in enumerate(labels) if label in labels[:i]), None)
    if again is not None:
        raise ValueError(f"the label {again!r} is there twice")
    return labels


class ClassificationHead(_LabelHead):
    """Which of some labels a text has: a softmax over them, or a sigmoid for each; loss is the cross-entropy."""

    kind: Literal["classification"] = "classification"
    labels: list[str] = Field(default_factory=list)
    """Names of the labels, in the order of their numbers; by default those of the data."""
    multiple: bool = False
    """A text has any number of the labels, each by itself; the loss is the mean over labels."""

    _labels = field_validator("labels")(_distinct)

    def problems(self, family: str, norm: str) -> Iterator[tuple[str, str]]:
        """What no single field can see, given the kinds of model and norm: (key, what is wrong and the remedy)."""
        yield from super().problems(family, norm)
        if len(self.labels) == 1 and not self.multiple:
            yield "labels", "one label alone leaves nothing to tell apart: name another, or set model.head.multiple"


class TokenClassificationHead(_LabelHead):
    """Which of some labels each token has (tags of words): a softmax; loss is the cross-entropy."""

    kind: Literal["token_classification"] = "token_classification"
    labels: list[str] = Field(default_factory=list)
    """Names of the labels (O, B-PER, I-PER), in the order of their numbers; by default those of the data."""

    _labels = field_validator("labels")(_distinct)

    def problems(self, family: str, norm: str) -> Iterator[tuple[str, str]]:
        """What no single field can see, given the kinds of model and norm: (key, what is wrong and the remedy)."""
        yield from super().problems(family, norm)
        if len(self.labels) == 1:
            yield "labels", "one label alone leaves nothing to tell apart: name another"


class RegressionHead(_LabelHead):
    """Numbers of a text; the loss is the squared error, the mean over outputs."""

    kind: Literal["regression"] = "regression"
    outputs: Count = Field(default=1, ge=1)
    """Numbers for each text."""


class SpanHead(_LabelHead):
    """Where an answer begins and ends in a text: a softmax over its tokens each, loss is the mean of both."""

    kind: Literal["span"] = "span"


LabelHeadConfig = ClassificationHead | TokenClassificationHead | RegressionHead | SpanHead
HeadConfig = Annotated[LMHead | MaskedHead | LabelHeadConfig, Field(discriminator="kind")]
LABEL_HEADS = (ClassificationHead, TokenClassificationHead, RegressionHead, SpanHead)
"""Heads that are trained on labels instead of text."""


def describe_head(head: LMHead | MaskedHead | LabelHeadConfig) -> str:
    """Its kind and its labels, for people."""
    labels = getattr(head, "labels", [])
    more = [f"{len(labels) - 6} more"] if len(labels) > 6 else []
    return f"{head.kind}: {', '.join([*labels[:6], *more])}" if labels else head.kind


def num_outputs(head: LabelHeadConfig) -> int:
    """Outputs of a head for each token."""
    if isinstance(head, ClassificationHead | TokenClassificationHead):
        return len(head.labels)
    return head.outputs if isinstance(head, RegressionHead) else 2
