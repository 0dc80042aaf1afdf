"""Configuration of the steps that count mentions of groups of people, and that rebalance them."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from hornbook.settings.fields import Count
from hornbook.text.config.step import DecisionConfig, Words

_PEOPLE = Path(__file__).parents[1] / "refinery" / "bias" / "people"
SHIPPED = {path.stem: path for path in sorted(_PEOPLE.glob("*.toml"))}
"""Language -> file of the terms that come with hornbook."""


class CountedMentions(DecisionConfig):
    """Settings of steps that count mentions of groups of people, and the mentions with an attribute nearby."""

    terms: str = "en"
    """`en`, `de`, `fr` or `es` for the terms that come with hornbook (women and men, occupations, adjectives), or a
    TOML or JSON file with tables `groups` and `attributes`, each name with its list of terms."""
    words: Words = "cjk"
    """Definition of a word; case and punctuation at its ends are ignored. Terms are one or several whole words."""
    window: Annotated[Count, Field(ge=1)] | Literal["sentence"] = 10
    """What is near a mention: words within this distance before and after it, or those in the same `sentence`."""

    @field_validator("terms")
    @classmethod
    def _named(cls, terms: str) -> str:
        """A bare word that names no shipped terms is a typing error, not a file."""
        if terms not in SHIPPED and Path(terms).name == terms and not Path(terms).suffix:
            raise ValueError(f"{terms!r} is not one of {', '.join(SHIPPED)}: name one, or a .toml or .json file")
        return terms

    @property
    def path(self) -> Path:
        """The file of the terms."""
        return SHIPPED.get(self.terms, Path(self.terms))

    def reads(self) -> list[str]:
        return [str(self.path)]


class MentionsConfig(CountedMentions):
    """Decision that drops nothing: counts who is mentioned with what, for `hornbook prepare bias` and the report."""

    kind: Literal["mentions"] = "mentions"
    step = "bias.mentions:Mentions"


class RebalanceConfig(CountedMentions):
    """Decision over all documents: thin out those with pairs of a group and an attribute that are over-represented.

    A document is kept with probability expected / observed of its pairs (the weights of Kamiran and Calders 2012,
    scaled to at most 1); none is repeated. Columns and report as of `mentions`. Off unless it is in the list.
    """

    kind: Literal["rebalance"] = "rebalance"
    step = "bias.rebalance:Rebalance"
    attributes: list[str] = Field(default_factory=list)
    """Attributes to rebalance; by default all that occur near mentions often enough to be judged."""
    floor: float = Field(default=0.1, gt=0, le=1)
    """Least probability of keeping a document: limits the loss, and how balanced a pair can become."""
    seed: Count = Field(default=0, ge=0)
    """Other seeds keep other documents."""
