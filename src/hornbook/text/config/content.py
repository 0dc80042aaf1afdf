"""Configuration of the steps that look at the content of a text."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from hornbook.settings.fields import Count
from hornbook.text.config.step import DecisionConfig, EditConfig, Words

PersonalKind = Literal["email", "phone", "iban", "card", "ip", "national_id", "address", "key"]
PERSONAL: tuple[PersonalKind, ...] = ("email", "phone", "iban", "card", "ip", "national_id", "address", "key")
"""All kinds of personal data, in the order of their counters."""
_PEOPLE = Path(__file__).parents[1] / "refinery" / "bias" / "people"
SHIPPED = {path.stem: path for path in sorted(_PEOPLE.glob("*.toml"))}
"""Language -> file of the terms that come with hornbook."""


class PersonalConfig(EditConfig):
    """Edit: replace personal data by placeholders such as `<EMAIL>`, or only count it.

    Numbers with check digits must have the right ones; street addresses and telephone numbers are found by their form.
    """

    kind: Literal["personal"] = "personal"
    step = "privacy.personal:Personal"
    action: Literal["redact", "detect", "drop"] = "redact"
    """`detect` leaves the text and fills the columns; `drop` removes documents in which anything was found."""
    kinds: list[PersonalKind] = Field(default_factory=lambda: list(PERSONAL), min_length=1)
    """Kinds to look for."""
    placeholders: dict[PersonalKind, str] = Field(default_factory=dict)
    """Replacement of each kind; by default its name in capitals, `<EMAIL>`."""
    ip: Literal["public", "all"] = "public"
    """`all` includes addresses of private, local and documentation networks, which identify nobody."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if wrong := sorted(set(self.placeholders) - set(self.kinds)):
            raise ValueError(f"placeholders for {', '.join(wrong)}, which is not among `kinds`: add it there")
        return self


class RepairConfig(EditConfig):
    """Edit: repair UTF-8 that was read as cp1252 or Latin-1, leftover HTML entities, invisible characters.

    Replacement characters stay and are counted: the original characters are lost.
    """

    kind: Literal["repair"] = "repair"
    step = "steps.repair:Repair"
    entities: bool = True
    """Decode `&amp;` and the like, in texts without markup."""


class BoilerplateConfig(EditConfig):
    """Edit: remove lines about cookies, subscriptions, sharing, rights and navigation, in nine languages."""

    kind: Literal["boilerplate"] = "boilerplate"
    step = "steps.boilerplate:Boilerplate"
    max_words: Count = Field(default=40, ge=1)
    """Longer lines stay: they are prose that mentions these things."""


class HarmfulConfig(DecisionConfig):
    """Decision: drop documents with too many words of your lists of harmful terms. No list comes with hornbook."""

    kind: Literal["harmful"] = "harmful"
    step = "steps.harmful:Harmful"
    lists: dict[Literal["hate", "violence", "sexual", "self_harm"], list[str]] = Field(min_length=1)
    """Category -> text files with a term per line; every document is searched for all lists of a category."""
    languages: dict[str, list[Annotated[str, Field(pattern=r"^[a-z]+$")]]] = Field(default_factory=dict)
    """Path of a list -> languages of the documents it applies to, as a step named `language` finds them; other lists
    apply to all. Documents of unknown language are judged by every list."""
    exceptions: list[str] = Field(default_factory=list)
    """Text files with a phrase per line, for all categories and languages: a term within a phrase does not count. Lists
    in scripts without spaces (Chinese, Japanese, Thai ...) need them: there a term is found within longer words too."""
    max_share: float = Field(default=0.01, ge=0, le=1)
    """Largest share of a document's words that terms of one category may have."""
    min_hits: Count = Field(default=1, ge=1)
    """A document with fewer terms of a category is never dropped for it."""

    def reads(self) -> list[str]:
        return [*self._listed(), *self.exceptions]

    def _listed(self) -> list[str]:
        return [path for paths in self.lists.values() for path in paths]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if wrong := sorted(set(self.languages) - set(self._listed())):
            raise ValueError(f"languages of {wrong[0]}, which is not among `lists`: add it there")
        return self


class LanguageConfig(DecisionConfig):
    """Decision: keep only documents in some languages. Columns: language, confidence, script.

    Needs lingua (extra `lang`); `detector = "script"` needs nothing, and knows only scripts, not languages.
    """

    kind: Literal["language"] = "language"
    step = "steps.language:Language"
    keep: list[str] = Field(default_factory=list)
    """ISO 639-1 codes (`en`), or names of scripts (`latin`) with the detector `script`; by default all are kept."""
    among: list[str] = Field(default_factory=list)
    """Codes that lingua chooses among; by default all it knows, which is slower and less accurate on short texts."""
    min_confidence: float = Field(default=0.5, ge=0, le=1)
    """A document whose language is less certain is dropped."""
    detector: Literal["lingua", "script"] = "lingua"
    """Detector of languages."""
    sample: Count = Field(default=2000, ge=100)
    """Characters of a document that are looked at: half from its beginning, half from its middle."""

    def packages(self) -> list[str]:
        """lingua, where it is the detector."""
        return ["lingua-language-detector"] if self.detector == "lingua" else []


class CodeConfig(DecisionConfig):
    """Decision on source code: drop generated and minified files, and by licence. Columns: measurements, an SPDX id.

    The rules are those published for The Stack and StarCoder (Kocetkov et al. 2022, Li et al. 2023).
    """

    kind: Literal["code"] = "code"
    step = "steps.code:Code"
    max_line: Count = Field(default=1000, ge=1)
    """Most characters of the longest line."""
    max_mean_line: float = Field(default=100, gt=0)
    """Most characters of a line on average."""
    min_letters: float = Field(default=0.25, ge=0, le=1)
    """Least share of letters and digits among the characters."""
    generated: bool = False
    """Keep files whose first five lines say that they are generated."""
    licences: list[str] = Field(default_factory=list)
    """SPDX ids to keep, `""` for files that name none; by default all."""


class SwapConfig(EditConfig):
    """Edit: in a share of the documents, swap words for their counterparts (counterfactual augmentation).

    English by default (he and she, mother and father ...); `pairs` replaces the words. Off unless it is in the list.
    """

    kind: Literal["swap"] = "swap"
    step = "steps.augment:Swap"
    share: float = Field(default=0.5, ge=0, le=1)
    """Share of the documents, chosen by their text and `seed`."""
    pairs: list[tuple[str, str]] = Field(default_factory=list)
    """Words that are swapped; by default those of `augment.toml`."""
    seed: Count = Field(default=0, ge=0)
    """Other seeds choose other documents."""

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        words = [word.casefold() for pair in self.pairs for word in pair]
        if twice := sorted({word for word in words if words.count(word) > 1 or not word.isalpha()}):
            raise ValueError(f"pairs are single words, each in one pair: look at {', '.join(twice)}")
        return self


class WordEditsConfig(EditConfig):
    """Edit: leave out, repeat or exchange words with the next (Wei and Zou 2019), in a share of the documents.

    Off unless it is in the list. Lines and spaces stay. Back-translation is a `python` step of your own.
    """

    kind: Literal["word_edits"] = "word_edits"
    step = "steps.augment:WordEdits"
    share: float = Field(default=0.1, ge=0, le=1)
    """Share of the documents, chosen by their text and `seed`."""
    rate: float = Field(default=0.1, gt=0, le=1)
    """Share of the words that are changed."""
    seed: Count = Field(default=0, ge=0)
    """Other seeds change other words."""


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
