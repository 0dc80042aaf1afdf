"""Dates of documents as intervals of time (ISO 8601), and what a source holds out by them."""

import re
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from hornbook.settings.fields import Config

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_DAY = timedelta(days=1) // _MICROSECOND
_DATE = re.compile(r"(\d{4})(?:-(\d{2})(?:-(\d{2}))?)?", re.ASCII)
_BASIC = re.compile(r"\d{8}", re.ASCII)
_TIME = re.compile(r"(?:\d{4}-\d{2}-\d{2}|\d{8})[Tt ]\d{2}.*", re.ASCII)


def interval(text: str) -> tuple[int, int]:
    """[begin, end) of a date, in microseconds from 1970 in UTC; a time of day is one microsecond.

    YYYY, YYYY-MM, YYYY-MM-DD, YYYYMMDD, and days with a time after `T` or a space. Raises ValueError.
    """
    text = text.strip()
    try:
        if found := _DATE.fullmatch(text):
            return _days(*(None if part is None else int(part) for part in found.groups()))
        if _BASIC.fullmatch(text):
            return _days(int(text[:4]), int(text[4:6]), int(text[6:]))
        if _TIME.fullmatch(text):
            begin = _microseconds(datetime.fromisoformat(text))
            return begin, begin + 1
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{_short(text)} is not a date: {error}") from None
    raise ValueError(f"{_short(text)} is not a date: ISO 8601 is read, such as 2024, 2024-07-01, 2024-07-01T12:00Z")


def spell(moment: int) -> str:
    """A moment in ISO 8601, in UTC."""
    return (_EPOCH + moment * _MICROSECOND).replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")


def _days(year: int | None, month: int | None, day: int | None) -> tuple[int, int]:
    assert year is not None
    first = date(year, month or 1, day or 1).toordinal()
    if day is not None:
        end = first + 1
    elif month is not None and month < 12:
        end = date(year, month + 1, 1).toordinal()
    else:
        end = date(year, 12, 31).toordinal() + 1
    begin = _EPOCH.toordinal()
    return (first - begin) * _DAY, (end - begin) * _DAY


def _microseconds(moment: datetime) -> int:
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment.astimezone(UTC).replace(tzinfo=None) - _EPOCH) // _MICROSECOND


def _short(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "...")


def _as_text(value: Any) -> Any:
    """Dates of TOML, and years as numbers."""
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if type(value) is int else value


def _checked(value: str) -> str:
    interval(value)
    return value


Date = Annotated[str, BeforeValidator(_as_text), AfterValidator(_checked)]
"""A year, a month, a day or a time in ISO 8601; without a zone in UTC."""


class Since(Config):
    """Documents from a date on."""

    kind: Literal["since"] = "since"
    date: Date
    """2024, 2024-07, 2024-07-01 or 2024-07-01T12:00+02:00; documents of that moment are held out."""


class Newest(Config):
    """The newest documents; those of one moment are not separated, so there may be fewer."""

    kind: Literal["newest"] = "newest"
    share: float = Field(gt=0, lt=1)
    """Share of the documents that have a date."""


Later = Annotated[Since | Newest, Field(discriminator="kind")]
