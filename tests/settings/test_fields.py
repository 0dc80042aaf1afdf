import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from hornbook.settings.fields import Config, Count, Duration, Number, field_docs, parse_number


class Sample(Config):
    count: Count = 0
    number: Number = 0.0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("32k", 32_000),
        ("1.5M", 1_500_000),
        ("7B", 7_000_000_000),
        ("7g", 7_000_000_000),
        ("2T", 2_000_000_000_000),
        ("64Ki", 65_536),
        ("1mi", 1_048_576),
        ("0.5Gi", 536_870_912),
        ("2_000", 2000),
        ("1e3k", 1_000_000),
        (" 5 k ", 5000),
        ("-3", -3),
        ("0.1k", 100),
        ("1.1k", 1100),
        ("9223372036854775807", 2**63 - 1),
        ("9007199254740993", 2**53 + 1),
    ],
)
def test_suffixes(text: str, number: int) -> None:
    parsed = parse_number(text)
    assert (parsed, type(parsed)) == (number, int)


@pytest.mark.parametrize("text", ["3e-4", ".5", "1e-12", "0.1", "2.5"])
def test_a_fraction_is_the_nearest_float(text: str) -> None:
    assert parse_number(text) == float(text)


@pytest.mark.parametrize("value", ["", "k", "1x", "1 2", "--1", "0x10", "1e999999999", "nan", "inf", None, [1]])
def test_what_is_no_number_is_left_alone(value: object) -> None:
    assert parse_number(value) is value


@given(st.integers(-(2**80), 2**80))
def test_integers_are_exact(number: int) -> None:
    assert parse_number(str(number)) == number


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_floats_are_exact(number: float) -> None:
    assert Sample(number=repr(number)).number == number  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("value", [True, "1.5", 2.5, "nan", math.inf, "1e999999999", "1e40", None, [1]])
def test_a_count_is_an_integer(value: object) -> None:
    with pytest.raises(ValidationError):
        Sample.model_validate({"count": value})


@pytest.mark.parametrize("value", [True, "x", math.nan, math.inf, -math.inf, "1e999999999"])
def test_a_number_is_finite(value: object) -> None:
    with pytest.raises(ValidationError):
        Sample.model_validate({"number": value})


def test_config_is_immutable_and_closed() -> None:
    sample = Sample()
    with pytest.raises(ValidationError, match="frozen"):
        sample.count = 1
    with pytest.raises(ValidationError, match="Extra inputs"):
        Sample.model_validate({"other": 1})


@pytest.mark.parametrize(
    ("value", "amount", "unit"),
    [
        ("200 steps", 200, "steps"),
        ("1 step", 1, "steps"),
        ("375M tokens", 375e6, "tokens"),
        ("64Ki tokens", 65536, "tokens"),
        ("1%", 0.01, "share"),
        ("12.5%", 0.125, "share"),
        (0.01, 0.01, "share"),
        ("0.01", 0.01, "share"),
        (2_000_000, 2e6, "tokens"),
        ("2M", 2e6, "tokens"),
        (0, 0, "share"),
    ],
)
def test_durations(value: object, amount: float, unit: str) -> None:
    duration = Duration.model_validate(value)
    assert (duration.amount, duration.unit) == (amount, unit)


@pytest.mark.parametrize("value", ["", "soon", "200 meters", "-1 steps", "150%", "-1%", True, None, [1], "inf tokens"])
def test_what_is_no_duration(value: object) -> None:
    with pytest.raises(ValidationError):
        Duration.model_validate(value)


def test_duration_in_tokens() -> None:
    lengths = [
        Duration.model_validate(text).tokens(10_000, lambda steps: 100 * steps)
        for text in ("2 steps", "150 tokens", "5%")
    ]
    assert lengths == [200, 150, 500]


@given(st.sampled_from(["tokens", "steps"]), st.floats(0, 1e15))
def test_a_written_duration_reads_back(unit: str, amount: float) -> None:
    duration = Duration.model_validate({"amount": amount, "unit": unit})
    assert Duration.model_validate(duration.model_dump()) == duration


@given(st.floats(0, 1))
def test_a_written_share_reads_back(amount: float) -> None:
    duration = Duration(amount=amount, unit="share")
    assert Duration.model_validate(duration.model_dump()) == duration


class Parent(Config, use_attribute_docstrings=True):
    first: int = 1
    """Of the parent,
    in two lines.
    """
    second: int = 2
    """Of the parent."""
    third: int = 3


class Child(Parent):
    second: int = 4
    third: int = 5
    """Of the child."""


@pytest.mark.parametrize("model", [Parent, Child])
def test_docstrings_of_fields_are_those_that_pydantic_reads(model: type[Config]) -> None:
    read = {name: field.description for name, field in model.model_fields.items() if field.description}
    assert field_docs(model) == read


def test_docstrings_of_fields_are_in_the_json_schema() -> None:
    class Plain(Config):
        number: int = 1
        """A number."""

    assert Plain.model_json_schema()["properties"]["number"]["description"] == "A number."
