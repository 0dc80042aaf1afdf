"""Dates of documents: what is read, as which stretch of time, and what is not."""

from datetime import UTC, datetime

import pytest

from hornbook.text.config.dates import interval, spell

DAY = 24 * 3600 * 10**6


def at(year: int, month: int, day: int, hour: int = 0, minute: int = 0) -> int:
    return round(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp()) * 10**6


@pytest.mark.parametrize(
    ("text", "begin", "end"),
    [
        ("2024", at(2024, 1, 1), at(2025, 1, 1)),
        ("2024-02", at(2024, 2, 1), at(2024, 3, 1)),
        ("2023-12", at(2023, 12, 1), at(2024, 1, 1)),
        ("2024-02-29", at(2024, 2, 29), at(2024, 3, 1)),
        (" 20240229 ", at(2024, 2, 29), at(2024, 3, 1)),
        ("1969-12-31", -DAY, 0),
        ("9999", at(9999, 1, 1), at(9999, 12, 31) + DAY),
        ("9999-12-31", at(9999, 12, 31), at(9999, 12, 31) + DAY),
    ],
)
def test_a_date_is_all_the_time_that_it_may_mean(text: str, begin: int, end: int):
    assert interval(text) == (begin, end)


@pytest.mark.parametrize(
    "text",
    [
        "2024-07-01T12:30:00Z",
        "2024-07-01T12:30:00",
        "2024-07-01 12:30:00+00:00",
        "20240701T123000Z",
        "2024-07-01T14:30+02:00",
        "2024-07-02T02:30:00.000+14:00",
        "2024-06-30T23:30:00-13:00",
    ],
)
def test_one_moment_in_any_zone(text: str):
    begin = at(2024, 7, 1, 12, 30)
    assert interval(text) == (begin, begin + 1)
    assert spell(begin) == "2024-07-01T12:30:00Z"


@pytest.mark.parametrize(
    "text",
    [
        *("", "yesterday", "July 1, 2024", "01.07.2024", "1719835200", "24", "2024-13", "2024-02-30", "2024-1-1"),
        *("2024-07-01T25:00", "2024-07-01T12:00:61Z", "2024-07-01T", "0000", "0001-01-01T00:00+01:00"),
        *("2024-07-01, 2024-07-02", "\u0662\u0660\u0662\u0664"),
    ],
)
def test_anything_else_is_an_error_that_shows_it(text: str):
    with pytest.raises(ValueError, match="is not a date"):
        interval(text)
