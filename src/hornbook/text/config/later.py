"""Configuration of what is held out by its date, so that a model is tried on text younger than all it has read."""

from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from hornbook.settings.fields import Config
from hornbook.text.config.dates import interval


def _as_text(value: Any) -> Any:
    """TOML knows dates, and a year is a number."""
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if type(value) is int else value


def _checked(value: str) -> str:
    interval(value)
    return value


Date = Annotated[str, BeforeValidator(_as_text), AfterValidator(_checked)]
"""As ISO 8601 writes it: a year, a month, a day, or a time; without a zone it is meant in UTC."""


class Since(Config):
    """Documents from a date on."""

    kind: Literal["since"] = "since"
    date: Date
    """2024, 2024-07, 2024-07-01 or 2024-07-01T12:00+02:00; what was written in that very moment is held out."""


class Newest(Config):
    """The newest documents; those of one moment stay together, so there may be fewer."""

    kind: Literal["newest"] = "newest"
    share: float = Field(gt=0, lt=1)
    """Share of the documents that have a date."""


Later = Annotated[Since | Newest, Field(discriminator="kind")]
