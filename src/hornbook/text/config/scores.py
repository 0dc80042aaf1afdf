"""Configuration of decisions by a score or another measured number: classifier, perplexity, quantiles, vocabulary."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hornbook.settings.fields import Count, LocalPath, Number
from hornbook.text.config.step import DecisionConfig, Words

_COLUMN = r"^[a-z][a-z0-9_]*\..+$"


class ClassifierConfig(DecisionConfig):
    """Decision: drop documents by the score of a classifier that `hornbook prepare classifier` trained."""

    kind: Literal["classifier"] = "classifier"
    step = "scores.classifier:Classifier"
    model: LocalPath
    """The classifier's file."""
    keep: Literal["above", "below"] = "above"
    """Keep documents with scores above the threshold (quality), or below (harm)."""
    threshold: Number = Field(default=0.5, ge=0, le=1)
    """Threshold of the score: the probability that a document is like the good samples."""

    def reads(self) -> list[str]:
        return [self.model]


class PerplexityConfig(DecisionConfig):
    """Decision: drop documents that a language model finds too strange or too predictable. Column: bits_per_byte.

    The model is one that `hornbook prepare perplexity` trained. Perplexity per byte is 2 to the power of the column.
    """

    kind: Literal["perplexity"] = "perplexity"
    step = "scores.perplexity_model:Perplexity"
    model: LocalPath
    """The model's file."""
    maximum: Number = Field(default=8.0, ge=0)
    """Most bits per byte: documents above it are unlike the model's text. A uniform model gives 8; a model of little
    text may give 12 and more to short, unusual texts."""
    minimum: Number = Field(default=0.0, ge=0)
    """Least bits per byte: documents below it repeat common text, such as boilerplate."""

    def reads(self) -> list[str]:
        return [self.model]


class QuantilesConfig(DecisionConfig):
    """Decision over all documents: keep what lies between two quantiles of a column.

    With `high = 0.33` of perplexity and `by` language it keeps what CCNet (Wenzek et al. 2020) calls the head.
    """

    kind: Literal["quantiles"] = "quantiles"
    step = "scores.quantiles:Quantiles"
    column: str = Field(pattern=_COLUMN)
    """STEP.COLUMN that another step measures, such as `perplexity.bits_per_byte` or `classifier.score`."""
    low: float = Field(default=0.0, ge=0, lt=1)
    """Share of the documents, from the lowest value on, that is dropped; equal values are treated alike."""
    high: float = Field(default=1.0, gt=0, le=1)
    """Quantile above which documents are dropped."""
    by: str = Field(default="", pattern=f"{_COLUMN}|^$")
    """Column such as `language.language`: each of its values has quantiles of its own."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g} and high {self.high:g}: nothing lies between them")
        return self


class VocabularyConfig(DecisionConfig):
    """Decision that drops nothing: stores a sample of each document's words, for `hornbook prepare curve`.

    Columns: the number of words, and the words of the sample as numbers, under 2 % of the text.
    """

    kind: Literal["vocabulary"] = "vocabulary"
    step = "scores.vocabulary:Vocabulary"
    words: Words = "cjk"
    """Definition of a word; case and punctuation at its ends are ignored."""
    one_in: Count = Field(default=16, ge=1)
    """One in this many different words is in the sample, wherever it occurs; fewer is more exact and larger."""
