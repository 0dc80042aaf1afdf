"""Configuration of what is counted of people in texts, and of evening out what stands beside them."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from hornbook.settings.fields import Count
from hornbook.text.config.step import DecisionConfig, Words

_PEOPLE = Path(__file__).parents[1] / "refinery" / "bias" / "people"
SHIPPED = {path.stem: path for path in sorted(_PEOPLE.glob("*.toml"))}
"""Language -> the terms that come with hornbook for it."""


class CountedMentions(DecisionConfig):
    """What is counted: mentions of groups of people, and of those the ones with an attribute nearby."""

    terms: str = "en"
    """Ours for `en`, `de`, `fr` or `es` (women and men, occupations, adjectives); or a TOML or JSON file with tables
    `groups` and `attributes`, each name with its list of terms."""
    words: Words = "cjk"
    """What a word is, capitals and punctuation at its ends aside; terms are whole words, one or several."""
    window: Annotated[Count, Field(ge=1)] | Literal["sentence"] = 10
    """What is near a mention: so many words before and after it, or `sentence`."""

    @field_validator("terms")
    @classmethod
    def _named(cls, terms: str) -> str:
        """A bare word that is none of ours is a slip, not a file."""
        if terms not in SHIPPED and Path(terms).name == terms and not Path(terms).suffix:
            raise ValueError(f"{terms!r} is none of ours ({', '.join(SHIPPED)}): name one, or a .toml or .json file")
        return terms

    @property
    def path(self) -> Path:
        """The file of the terms."""
        return SHIPPED.get(self.terms, Path(self.terms))

    def reads(self) -> list[str]:
        """The terms."""
        return [str(self.path)]


class MentionsConfig(CountedMentions):
    """Decision that drops nothing: it counts who is mentioned with what, for `hornbook prepare bias` and the report."""

    kind: Literal["mentions"] = "mentions"
    step = "bias.mentions:Mentions"


class RebalanceConfig(CountedMentions):
    """Decision over all documents: thin out those in which a group stands near an attribute more than by its share.

    A document stays with the chance expected / observed of its pairs (the weights of Kamiran and Calders 2012, scaled
    to at most 1): none is repeated. Columns and report as of `mentions`. Off unless it is in the list.
    """

    kind: Literal["rebalance"] = "rebalance"
    step = "bias.rebalance:Rebalance"
    attributes: list[str] = Field(default_factory=list)
    """Names of those to even out; by default all that stand near people often enough to be judged."""
    floor: float = Field(default=0.1, gt=0, le=1)
    """Least chance of any document to stay: what is lost at most, and how far from even a pair may remain."""
    seed: Count = Field(default=0, ge=0)
    """Other seeds keep other documents."""
