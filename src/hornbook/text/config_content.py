"""Configuration of the steps that look at what a text says."""

from typing import Literal, Self

from pydantic import Field, model_validator

from hornbook.text.config_step import EditConfig

PersonalKind = Literal["email", "phone", "iban", "card", "ip", "national_id", "address", "key"]
PERSONAL: tuple[PersonalKind, ...] = ("email", "phone", "iban", "card", "ip", "national_id", "address", "key")
"""All kinds of personal data, in the order of their counters."""


class Personal(EditConfig):
    """Edit: personal data gives way to placeholders such as `<EMAIL>`, or is only counted.

    Numbers with check digits are found where these are right; street addresses and telephone numbers by their form.
    """

    kind: Literal["personal"] = "personal"
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


class Repair(EditConfig):
    """Edit: UTF-8 that was read as cp1252 or Latin-1, HTML entities left over, characters that nobody sees.

    Replacement characters stay and are counted: what they stood for is lost.
    """

    kind: Literal["repair"] = "repair"
    entities: bool = True
    """Also `&amp;` and the like, in texts without markup."""
