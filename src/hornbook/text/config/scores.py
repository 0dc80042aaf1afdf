"""Configuration of the score that a language model gives."""

from typing import Literal

from pydantic import Field

from hornbook.settings.fields import Number
from hornbook.text.config.step import DecisionConfig


class PerplexityConfig(DecisionConfig):
    """Decision: drop documents that a language model finds too strange or too predictable. Column: bits_per_byte.

    The model is one that `hornbook prepare perplexity` trained. Perplexity per byte is 2 to the power of the column.
    """

    kind: Literal["perplexity"] = "perplexity"
    model: str
    """The model's file."""
    maximum: Number = Field(default=8.0, ge=0)
    """Most bits per byte: what takes more is unlike the model's text. 8 is what knowing nothing takes;
    a model of little text gives short texts that are odd to it 12 and more."""
    minimum: Number = Field(default=0.0, ge=0)
    """Least bits per byte: what takes less repeats what everybody writes, such as boilerplate."""

    def reads(self) -> list[str]:
        """The model."""
        return [self.model]
