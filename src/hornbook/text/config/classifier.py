"""Configuration of scores that are learned from a user's own samples."""

from typing import Literal

from pydantic import Field

from hornbook.settings.fields import Number
from hornbook.text.config.step import DecisionConfig


class ClassifierConfig(DecisionConfig):
    """Decision: drop documents by the score of a classifier that `hornbook prepare classifier` trained."""

    kind: Literal["classifier"] = "classifier"
    model: str
    """The classifier's file."""
    keep: Literal["above", "below"] = "above"
    """Keep documents whose score is above the threshold (quality), or those below (harm)."""
    threshold: Number = Field(default=0.5, ge=0, le=1)
    """Score: the probability that a document is of the kind the classifier was taught as good."""

    def reads(self) -> list[str]:
        """The classifier."""
        return [self.model]
