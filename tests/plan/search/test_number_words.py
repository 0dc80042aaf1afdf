"""Numbers in words have three digits in every unit."""

import pytest

from hornbook.plan.search.number_words import short


@pytest.mark.parametrize(
    ("number", "text"), [(12, "12"), (999_400, "999 k"), (999_600, "1 M"), (1e9 - 1, "1 B"), (1.46e9, "1.46 B")]
)
def test_a_number_that_is_rounded_up_takes_the_next_unit(number: float, text: str) -> None:
    assert short(number) == text
