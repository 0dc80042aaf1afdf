"""Configuration of the steps that look at what a text says."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from hornbook.settings.fields import Count
from hornbook.text.config.step import DecisionConfig, EditConfig

PersonalKind = Literal["email", "phone", "iban", "card", "ip", "national_id", "address", "key"]
PERSONAL: tuple[PersonalKind, ...] = ("email", "phone", "iban", "card", "ip", "national_id", "address", "key")
"""All kinds of personal data, in the order of their counters."""


class PersonalConfig(EditConfig):
    """Edit: personal data gives way to placeholders such as `<EMAIL>`, or is only counted.

    Numbers with check digits are found where these are right; street addresses and telephone numbers by their form.
    """

    kind: Literal["personal"] = "personal"
    step = "privacy.personal:Personal"
    action: Literal["redact", "detect", "drop"] = "redact"
    """Detect leaves the text and fills the columns; drop removes documents in which anything was found."""
    kinds: list[PersonalKind] = Field(default_factory=lambda: list(PERSONAL), min_length=1)
    """What is looked for."""
    placeholders: dict[PersonalKind, str] = Field(default_factory=dict)
    """What stands in place of a kind; by default its name in capitals, `<EMAIL>`."""
    ip: Literal["public", "all"] = "public"
    """Addresses of private, local and documentation networks are nobody's; `all` takes them too."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if wrong := sorted(set(self.placeholders) - set(self.kinds)):
            raise ValueError(f"placeholders for {', '.join(wrong)}, which is not among `kinds`: add it there")
        return self


class RepairConfig(EditConfig):
    """Edit: UTF-8 that was read as cp1252 or Latin-1, HTML entities left over, characters that nobody sees.

    Replacement characters stay and are counted: what they stood for is lost.
    """

    kind: Literal["repair"] = "repair"
    step = "steps.repair:Repair"
    entities: bool = True
    """Also `&amp;` and the like, in texts without markup."""


class BoilerplateConfig(EditConfig):
    """Edit: lines about cookies, subscriptions, sharing, rights and navigation go; they are in nine languages."""

    kind: Literal["boilerplate"] = "boilerplate"
    step = "steps.boilerplate:Boilerplate"
    max_words: Count = Field(default=40, ge=1)
    """Longer lines stay: they are prose that mentions such things."""


class HarmfulConfig(DecisionConfig):
    """Decision: documents of which too many words are on your lists of harmful ones. No list comes with hornbook."""

    kind: Literal["harmful"] = "harmful"
    step = "steps.harmful:Harmful"
    lists: dict[Literal["hate", "violence", "sexual", "self_harm"], list[str]] = Field(min_length=1)
    """Category -> text files, a term a line; all lists of a category are looked for in every document."""
    languages: dict[str, list[Annotated[str, Field(pattern=r"^[a-z]+$")]]] = Field(default_factory=dict)
    """Path of a list -> the languages of its documents, as a step named `language` finds them; a list that is not here
    is for all. Documents whose language is not known are judged by each."""
    exceptions: list[str] = Field(default_factory=list)
    """Text files, a phrase a line, of any category and language: a term within one of them does not count. Lists in
    scripts without blanks need them (Chinese, Japanese, Thai ...): there a term is found within longer words too."""
    max_share: float = Field(default=0.01, ge=0, le=1)
    """Largest share of the words of a document that one category may have."""
    min_hits: Count = Field(default=1, ge=1)
    """Fewer terms of a category than that never drop a document."""

    def reads(self) -> list[str]:
        """The lists and the exceptions."""
        return [*self._listed(), *self.exceptions]

    def _listed(self) -> list[str]:
        return [path for paths in self.lists.values() for path in paths]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if wrong := sorted(set(self.languages) - set(self._listed())):
            raise ValueError(f"languages of {wrong[0]}, which is not among `lists`: add it there")
        return self


class LanguageConfig(DecisionConfig):
    """Decision: only documents in some languages stay. Columns: language, confidence, script.

    With lingua (extra `lang`); `detector = "script"` needs nothing, and knows scripts alone, not languages.
    """

    kind: Literal["language"] = "language"
    step = "steps.language:Language"
    keep: list[str] = Field(default_factory=list)
    """ISO 639-1 codes (`en`), or names of scripts (`latin`) where the detector is `script`; by default all stay."""
    among: list[str] = Field(default_factory=list)
    """Codes that lingua chooses among; by default all it knows, which is slower and errs more in short texts."""
    min_confidence: float = Field(default=0.5, ge=0, le=1)
    """A less certain language counts as none of `keep`."""
    detector: Literal["lingua", "script"] = "lingua"
    """What judges."""
    sample: Count = Field(default=2000, ge=100)
    """How many characters of a document are looked at: half from its beginning, half from its middle."""

    def packages(self) -> list[str]:
        """lingua, where it judges."""
        return ["lingua-language-detector"] if self.detector == "lingua" else []


class CodeConfig(DecisionConfig):
    """Decision on source code: generated and minified files, licences. Columns: the figures, and an SPDX id.

    The rules are those published for The Stack and StarCoder (Kocetkov et al. 2022, Li et al. 2023).
    """

    kind: Literal["code"] = "code"
    step = "steps.code:Code"
    max_line: Count = Field(default=1000, ge=1)
    """Characters of the longest line."""
    max_mean_line: float = Field(default=100, gt=0)
    """Characters of a line on average."""
    min_letters: float = Field(default=0.25, ge=0, le=1)
    """Least share of letters and digits among the characters."""
    generated: bool = False
    """Keep files whose first five lines say that they are generated."""
    licences: list[str] = Field(default_factory=list)
    """SPDX ids that may stay, `""` for files that name none; by default all do."""


class SwapConfig(EditConfig):
    """Edit: in a share of the documents, words trade places with their counterparts (counterfactual augmentation).

    English by default (he and she, mother and father ...); `pairs` are other words. Off unless it is in the list.
    """

    kind: Literal["swap"] = "swap"
    step = "steps.augment:Swap"
    share: float = Field(default=0.5, ge=0, le=1)
    """Of the documents, chosen by their text and `seed`."""
    pairs: list[tuple[str, str]] = Field(default_factory=list)
    """Words that trade places; by default those of `swap.py`."""
    seed: Count = Field(default=0, ge=0)
    """Other seeds choose other documents."""

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        words = [word.casefold() for pair in self.pairs for word in pair]
        if twice := sorted({word for word in words if words.count(word) > 1 or not word.isalpha()}):
            raise ValueError(f"pairs are single words, each in one pair: look at {', '.join(twice)}")
        return self


class WordEditsConfig(EditConfig):
    """Edit: words left out, repeated or exchanged with the next (Wei and Zou 2019), in a share of the documents.

    Off unless it is in the list. Lines and blanks stay. Back-translation is a `python` step of your own.
    """

    kind: Literal["word_edits"] = "word_edits"
    step = "steps.augment:WordEdits"
    share: float = Field(default=0.1, ge=0, le=1)
    """Of the documents, chosen by their text and `seed`."""
    rate: float = Field(default=0.1, gt=0, le=1)
    """How many of the words are touched."""
    seed: Count = Field(default=0, ge=0)
    """Other seeds draw otherwise."""
