"""Configuration of heads, which read tokens, labels, numbers or spans from the last hidden states.

A label sits on tokens. A text's label sits on one of them: the first where all tokens are seen (an encoder), the last
where only earlier ones are (a decoder). So every head is a projection of each token's hidden state, and the weights of
the tokens say where an output is asked for.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from hornbook.model.config.mlp_config import Activation
from hornbook.model.config.norm_config import norm_weights
from hornbook.model.config.part import (
    Cut,
    Model,
    Part,
    Problems,
    Rows,
    Weight,
    linear,
    placed,
    products_of,
    unknown_memory,
)
from hornbook.settings.fields import Count, Number

CHUNK_BYTES = 2048
"""Bytes of logits held at once, per row of the matrix: 1024 tokens in bfloat16, 512 in float32. Fewer tokens cost time,
since each chunk adds to a gradient of the matrix's size, and save little memory beside that gradient."""
DEVICE_SHARE = 64
"""On a GPU logits take at most one part in so many of its memory. Each chunk adds to a gradient of the matrix's size,
which costs a GPU, where products are fast beside memory, as much as products of some hundred tokens."""
CHUNK_COPIES = 5
"""On a GPU a chunk of logits and its copies in float32 take at most so many times the chunk: the loss as it is written
out, in 16 bits."""


class HeadPart(Part):
    """A head; `vocab` is the rows of the embedding."""

    def build(self, model: Model, vocab: int, embedding: Any, /) -> Any:
        """The module, which may share the matrix of `embedding`."""
        return self.make(self, model, vocab, embedding)

    def weights(self, model: Model, vocab: int, /) -> list[Weight]:
        """Parameters, without a matrix shared with the embedding."""
        raise NotImplementedError

    def num_parameters(self, model: Model, vocab: int, /) -> int:
        """Trained values, without a matrix shared with the embedding."""
        return sum(each.size for each in self.weights(model, vocab))

    def num_matmul_weights(self, model: Model, vocab: int, /) -> int:
        """Weights that a position of the stream is multiplied by, shared with the embedding or not."""
        weights = self.weights(model, vocab)
        outputs = sum(each.size for each in weights if each.role == "head")
        return outputs + sum(each.weights for each in products_of(weights))

    def num_outputs(self, vocab: int, /) -> int:
        """Outputs of each token: by default one for each row of the embedding."""
        return vocab

    def saved_bytes(self, _model: Model, _vocab: int, _rows: Rows, _targets: int, /) -> int:
        """Bytes kept for backward when the loss is known; `targets` are the tokens that are predicted."""
        raise unknown_memory(self)

    def generator_of(self, _model: Model, /) -> Model | None:
        """The model beside it that makes its input in training, as a configuration; None: there is none."""
        return None


def transform_weights(model: Model, width: int, *, bias: bool, norm: bool) -> list[Weight]:
    """Parameters of `hornbook.model.heads.head.Transform` to `width` values."""
    factors = norm_weights(model.norm, model.model_copy(update={"width": width})) if norm else []
    return linear("dense", model.width, width, bias=bias) + placed("norm", factors)


# ---- Heads of language models


class _VocabularyHead(HeadPart):
    """A projection of vectors as wide as the embedding's to the vocabulary."""

    def weights(self: Any, model: Model, vocab: int) -> list[Weight]:
        width, by_tokens = model.embedding.width or model.width, Cut(0, "vocabulary", vocab)
        found = [] if self.tied else [Weight("weight", (vocab, width), "head", by_tokens)]
        found += [Weight("bias", (vocab,), "vector", by_tokens)] if self.bias else []
        return found + placed("before", self._before(model, width))

    def num_matmul_weights(self: Any, model: Model, vocab: int) -> int:
        shared = vocab * (model.embedding.width or model.width) if self.tied else 0
        return super().num_matmul_weights(model, vocab) + shared

    def _before(self, model: Model, width: int) -> list[Weight]:
        """Parameters between the stack and the projection, which reads `width` values."""
        raise NotImplementedError

    def saved_bytes(self: Any, model: Model, vocab: int, rows: Rows, targets: int) -> int:
        """The loss has made its gradients: of hidden states, of the matrix, and of a bias that is trained."""
        width = model.embedding.width or model.width
        before = self._saved_before(model, rows, targets)
        made = rows.itemsize * (targets if before else rows.tokens) * width
        trained = self.bias and model.kind != "encoder_decoder"
        return before + made + 4 * vocab * (width + trained)

    def _saved_before(self, model: Model, rows: Rows, targets: int) -> int:
        """Bytes kept between the stack and the projection: where targets are, and what is computed for them alone."""
        raise NotImplementedError


class LMHead(_VocabularyHead):
    """Projection to the vocabulary."""

    builder = "heads.head:lm_head"
    kind: Literal["lm"] = "lm"
    tied: bool = True
    """Share the matrix with the token embedding."""
    bias: bool = False
    """A shift of each token's logit: learned; of encoder-decoders fixed (BART's `final_logits_bias`)."""
    scale: Number = 1.0
    """Factor of the hidden states before it (T5 v1.0: 1 / sqrt(width))."""
    softcap: Number | None = Field(default=None, gt=0)
    """Logits z become softcap * tanh(z / softcap) (Gemma 2)."""

    def _before(self, model: Model, width: int) -> list[Weight]:
        return [Weight("weight", (width, model.width))] if model.embedding.width else []

    def _saved_before(self, model: Model, rows: Rows, targets: int) -> int:
        if model.embedding.width is None:
            return 8 * targets if self.scale != 1 else 0
        matrix = 2 * model.width * model.embedding.width if rows.itemsize == 2 else 0
        return (8 + rows.itemsize * model.width) * targets + matrix

    def problems(self, model: Model) -> Problems:
        if model.embedding.width is not None and (self.scale != 1 or model.init.kind == "mup"):
            text = "the projection to model.embedding.width stands in its place"
            yield "head.scale", f'{text}: leave out one of the two (model.init.kind "mup" sets it)'


class MaskedHead(_VocabularyHead):
    """Projection, activation and norm before that to the vocabulary (BERT)."""

    builder = "heads.head:masked_head"
    kind: Literal["masked"] = "masked"
    tied: bool = True
    """Share the matrix with the token embedding."""
    bias: bool = True
    """A learned shift of each token's logit."""
    activation: Activation = "gelu"
    """Activation of the projection."""
    dense_bias: bool = True
    """Bias of the projection."""

    def _saved_before(self, model: Model, rows: Rows, targets: int) -> int:
        """Where the targets are, the projection's input and matrix, its output, and what the norm keeps."""
        few, read = Rows(targets, 1, rows.itemsize), self._read(model)
        made = self.activation != "relu" or not model.norm.keeps_input(few)  # relu keeps its result, the norm's input
        return (
            8 * targets
            + few.stream(model)
            + (made + model.norm.keeps_input(few)) * few.stream(read)
            + few.cast(model.width * read.width)
            + model.norm.saved_bytes(read.width, few)
        )

    def _before(self, model: Model, width: int) -> list[Weight]:
        return transform_weights(model, width, bias=self.dense_bias, norm=True)

    def _read(self, model: Model) -> Model:
        """The model, as wide as the vectors that the projection to the vocabulary reads."""
        return model.model_copy(update={"width": model.embedding.width or model.width})

    def problems(self, model: Model) -> Problems:
        if model.kind == "decoder":
            yield "head", 'a decoder predicts the next token: use "lm"'


# ---- Heads of labelled texts


class NoTransform(Part):
    """No step: the hidden states pass unchanged (GPT-2, LLaMA)."""

    kind: Literal["none"] = "none"

    def build(self, _model: Model) -> None:
        pass

    def weights(self, _model: Model) -> list[Weight]:
        """Parameters."""
        return []

    def saved_bytes(self, _model: Model, _rows: Rows) -> int:
        """Bytes kept for backward."""
        return 0

    keeps_result: ClassVar = False
    """Whether its result is among them."""


class DenseTransform(Part):
    """A projection and an activation (BERT's pooler), then a norm if asked for (ModernBERT)."""

    builder = "heads.head:Transform"
    kind: Literal["dense"] = "dense"
    activation: Literal["tanh"] | Activation = "tanh"
    """Activation of the projection."""
    bias: bool = True
    """Bias of the projection."""
    norm: bool = False
    """A norm of the model's kind after the activation."""

    def build(self, model: Model) -> Any:
        return self.make(model.width, self.bias, self.activation, model.norm.build(model.width) if self.norm else None)

    def weights(self, model: Model) -> list[Weight]:
        """Parameters."""
        return transform_weights(model, model.width, bias=self.bias, norm=self.norm)

    @property
    def keeps_result(self) -> bool:
        return self._keeps_activated and not self.norm

    @property
    def _keeps_activated(self) -> bool:
        """Whether the activation keeps its result, and not what it is made of."""
        return self.activation in ("tanh", "relu")

    def saved_bytes(self, model: Model, rows: Rows) -> int:
        """The projection's input and matrix, what the activation keeps, and what the norm does."""
        kept = 2 * rows.stream(model) + rows.cast(model.width**2)
        if not self.norm:
            return kept
        twice = model.norm.keeps_input(rows) and not self._keeps_activated
        return kept + model.norm.saved_bytes(model.width, rows) + twice * rows.stream(model)


TransformConfig = Annotated[NoTransform | DenseTransform, Field(discriminator="kind")]


class LabelHeadPart(HeadPart):
    """What all heads of labelled texts have; `outputs` is the number of outputs for each token."""

    transform: TransformConfig = NoTransform()
    """What is done to the hidden states first."""
    bias: bool = True
    """A learned shift of each output."""
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """Dropout on what the last projection reads."""

    def build(self, model: Model, _vocab: int, _embedding: Any) -> Any:
        return self.make(model.width, self, self.transform.build(model))

    def weights(self: Any, model: Model, _vocab: int) -> list[Weight]:
        found = [Weight("weight", (self.outputs, model.width), "head")]
        found += [Weight("bias", (self.outputs,), "vector")] if self.bias else []
        return found + placed("before", self.transform.weights(model))

    def num_outputs(self: Any, _vocab: int) -> int:
        return max(self.outputs, 1)  # labels may be those of the data

    def saved_bytes(self, model: Model, _vocab: int, rows: Rows, targets: int, /) -> int:
        """Where labels are, the transform, what the last projection reads in float32, and the losses."""
        few = Rows(targets, 1, rows.itemsize)
        shared = rows.itemsize == 4 and self.transform.keeps_result and not self.dropout
        read = 0 if shared else 4 * targets * model.width
        return (
            self.transform.saved_bytes(model, few) + read + 8 * targets * bool(self.dropout) + self._losses(few, rows)
        )

    def _losses(self, few: Rows, _rows: Rows, /) -> int:
        """Of cross-entropies: where tokens with labels are, their labels and weights, log-probabilities, a sum."""
        return few.tokens * (8 + 8 + 4 + 4 * self.num_outputs(0)) + 4

    def problems(self, model: Model) -> Problems:
        if model.kind == "encoder_decoder":
            yield "head.kind", 'an encoder-decoder writes its answers as text: use "lm", or a model of one stack'
        if isinstance(self.transform, DenseTransform) and self.transform.norm and model.norm.kind in ("none", "batch"):
            text = f'model.norm "{model.norm.kind}" cannot stand behind the few tokens that carry labels'
            yield "head.transform.norm", f'{text}: set it to false, or use "layer" or "rms"'


def _distinct(labels: list[str]) -> list[str]:
    again = next((label for i, label in enumerate(labels) if label in labels[:i]), None)
    if again is not None:
        raise ValueError(f"the label {again!r} is there twice")
    return labels


class ClassificationHead(LabelHeadPart):
    """Which of some labels a text has: a softmax over them, or a sigmoid for each; loss is the cross-entropy."""

    builder = "heads.label_heads:Classifier"
    kind: Literal["classification"] = "classification"
    labels: list[str] = Field(default_factory=list)
    """Names of the labels, in the order of their numbers; by default those of the data."""
    multiple: bool = False
    """A text has any number of the labels, each by itself; the loss is the mean over labels."""

    _labels = field_validator("labels")(_distinct)

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def _losses(self, few: Rows, rows: Rows, /) -> int:
        if not self.multiple:
            return super()._losses(few, rows)
        return few.tokens * (8 + 4 + 8 * self.num_outputs(0))  # outputs, and whether each label is there

    def problems(self, model: Model) -> Problems:
        yield from super().problems(model)
        if len(self.labels) == 1 and not self.multiple:
            text = "one label alone leaves nothing to tell apart: name another, or set model.head.multiple"
            yield "head.labels", text


class TokenClassificationHead(LabelHeadPart):
    """Which of some labels each token has (tags of words): a softmax; loss is the cross-entropy."""

    builder = "heads.label_heads:Tagger"
    kind: Literal["token_classification"] = "token_classification"
    labels: list[str] = Field(default_factory=list)
    """Names of the labels (O, B-PER, I-PER), in the order of their numbers; by default those of the data."""

    _labels = field_validator("labels")(_distinct)

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def problems(self, model: Model) -> Problems:
        yield from super().problems(model)
        if len(self.labels) == 1:
            yield "head.labels", "one label alone leaves nothing to tell apart: name another"


class RegressionHead(LabelHeadPart):
    """Numbers of a text; the loss is the squared error, the mean over outputs."""

    builder = "heads.label_heads:Regressor"
    kind: Literal["regression"] = "regression"
    outputs: Count = Field(default=1, ge=1)
    """Numbers for each text."""

    def _losses(self, few: Rows, _rows: Rows, /) -> int:
        return few.tokens * (8 + 4 + 4 * self.outputs)


class SpanHead(LabelHeadPart):
    """Where an answer begins and ends in a text: a softmax over its tokens each, loss is the mean of both."""

    builder = "heads.label_heads:SpanFinder"
    kind: Literal["span"] = "span"
    outputs: ClassVar = 2
    """Scores of each token as the first and the last of an answer."""

    def saved_bytes(self, model: Model, _vocab: int, rows: Rows, _targets: int, /) -> int:
        """Of all tokens: an answer is chosen among them."""
        return super().saved_bytes(model, _vocab, rows, rows.tokens)

    def _losses(self, _few: Rows, rows: Rows, /) -> int:
        """Which tokens may be chosen, log-probabilities, answers and weights of texts of a row each."""
        return rows.tokens * (1 + 8) + rows.rows * (16 + 4)


LabelHeadConfig = ClassificationHead | TokenClassificationHead | RegressionHead | SpanHead


def describe_head(head: HeadPart) -> str:
    """Its kind and its labels, for people."""
    labels = getattr(head, "labels", [])
    more = [f"{len(labels) - 6} more"] if len(labels) > 6 else []
    kind = getattr(head, "kind", "")
    return f"{kind}: {', '.join([*labels[:6], *more])}" if labels else kind
