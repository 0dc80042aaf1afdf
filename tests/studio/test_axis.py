"""Axes: round ticks, places, outliers."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.studio.axis import Axis, fit_axis, label


@given(st.floats(-1e9, 1e9), st.floats(1e-9, 1e9), st.integers(3, 10))
def test_ticks_are_few_and_on_the_axis(low: float, span: float, most: int) -> None:
    if low + span == low:
        return
    axis = Axis(low, low + span, 0, 100)
    ticks = axis.ticks(most)
    slack = 1e-6 * (abs(low) + span)
    assert 1 <= len(ticks) <= most + 1
    assert all(axis.low - slack <= tick <= axis.high + slack for tick in ticks)


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [(0, 10, 5, [0, 2, 4, 6, 8, 10]), (2.1, 8.4, 6, [4, 6, 8]), (0, 1, 4, [0, 0.25, 0.5, 0.75, 1.0])],
)
def test_ticks_are_round(low: float, high: float, most: int, expected: list[float]) -> None:
    assert Axis(low, high, 0, 1).ticks(most) == pytest.approx(expected)


@given(st.floats(1e-12, 1e9), st.floats(1.001, 1e12), st.integers(3, 8))
def test_logarithmic_ticks(low: float, ratio: float, most: int) -> None:
    axis = fit_axis([low, low * ratio], 100, 0, log=True)
    ticks = axis.ticks(most)
    assert 1 <= len(ticks) <= most + 1
    assert all(axis.low * (1 - 1e-6) <= tick <= axis.high * (1 + 1e-6) for tick in ticks)
    assert axis.pixel(math.sqrt(axis.low * axis.high)) == pytest.approx(50, abs=1e-3)


def test_an_axis_is_cut_below_outliers_far_above_the_rest() -> None:
    values = [2.0 + number / 1000 for number in range(1000)]
    assert fit_axis([*values, 900.0], 100, 0).high < 5
    assert fit_axis([*values, 3.5], 100, 0).high > 3.5
    assert fit_axis([*values, 900.0], 100, 0).pixel(900.0) == 0


@pytest.mark.parametrize("values", [[3.0], [0.0, 0.0], [-2.0, -2.0]])
def test_values_that_are_all_alike_have_an_axis(values: list[float]) -> None:
    axis = fit_axis(values, 100, 0)
    assert axis.low < values[0] < axis.high
    assert fit_axis(values, 100, 0, log=True).ticks(4)


def test_labels_are_short() -> None:
    numbers = (0, 0.25, 3e-05, 12_000, 2_500_000, 1e-17)
    assert [label(number) for number in numbers] == ["0", "0.25", "3e-05", "12k", "2.5M", "0"]
