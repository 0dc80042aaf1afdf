"""Configuration of what is noted of a document's vocabulary."""

from typing import Literal

from pydantic import Field

from hornbook.settings.fields import Count
from hornbook.text.config.step import DecisionConfig, Words


class VocabularyConfig(DecisionConfig):
    """Decision that drops nothing: it notes a sample of each document's words, for `hornbook prepare curve`.

    Columns: how many words there are, and those of the sample as numbers, under 2 % of the text.
    """

    kind: Literal["vocabulary"] = "vocabulary"
    words: Words = "cjk"
    """What a word is, capitals and punctuation at its ends aside."""
    one_in: Count = Field(default=16, ge=1)
    """One in so many different words is in the sample, wherever it stands; fewer is more exact and takes more room."""
