"""Configuration of a decision by rank among all documents."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hornbook.text.config.step import DecisionConfig

_COLUMN = r"^[a-z][a-z0-9_]*\..+$"


class QuantilesConfig(DecisionConfig):
    """Decision over all documents: only what lies between two quantiles of a column stays.

    With `high = 0.33` of perplexity and `by` language it keeps what CCNet (Wenzek et al. 2020) calls the head.
    """

    kind: Literal["quantiles"] = "quantiles"
    column: str = Field(pattern=_COLUMN)
    """STEP.COLUMN that another step measures, such as `perplexity.bits_per_byte` or `classifier.score`."""
    low: float = Field(default=0.0, ge=0, lt=1)
    """Share of the documents whose values are lower than any that stays; equal values stay together."""
    high: float = Field(default=1.0, gt=0, le=1)
    """Share of the documents whose values are up to the highest that stays."""
    by: str = Field(default="", pattern=f"{_COLUMN}|^$")
    """Column such as `language.language`: each of its values has its own quantiles."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g} and high {self.high:g}: nothing lies between them")
        return self
