"""Robust statistics: as their definitions say, and one outlier hides nothing."""

import json
import random
import statistics

import pytest

from hornbook.run.guard.robust_statistics import (
    NORMAL,
    RobustWindow,
    TrendWindow,
    median_distance,
    middle_of,
    theil_sen,
)


@pytest.mark.parametrize("count", [1, 2, 3, 10, 11, 256])
def test_median_and_distance_are_their_definitions(count: int) -> None:
    draw = random.Random(count)
    values = sorted(draw.gauss(0, 1) for _ in range(count))
    middle = statistics.median(values)
    assert middle_of(values) == middle
    assert median_distance(values, middle) == statistics.median(abs(each - middle) for each in values)


def filled(count: int = 300, size: int = 256) -> RobustWindow:
    draw, window = random.Random(1), RobustWindow(size)
    for _ in range(count):
        window.add(draw.gauss(2.0, 0.1))
    return window


def test_the_window_keeps_the_last_values() -> None:
    window, values = RobustWindow(8), [float(each % 5) for each in range(50)]
    for each in values:
        window.add(each)
    assert len(window) == 8
    assert window.middle == statistics.median(values[-8:])
    assert window.deviation == pytest.approx(NORMAL * statistics.median(abs(v - window.middle) for v in values[-8:]))


def test_an_outlier_does_not_hide_the_next() -> None:
    """The window of mean and standard deviation is blind for a whole window after a loss of 1000."""
    window = filled()
    before = window.z(10.0)
    window.add(1000.0)
    assert window.z(10.0) == pytest.approx(before, rel=0.05)


def test_a_lasting_change_is_usual_after_about_half_a_window() -> None:
    window, draw, steps = filled(), random.Random(2), 0
    while window.z(3.0) > 4:
        window.add(draw.gauss(3.0, 0.1))
        steps += 1
    assert 60 < steps < 170


def test_what_is_not_finite_is_infinitely_far() -> None:
    assert filled().z(float("nan")) == float("inf")


def test_a_window_goes_on_from_its_state() -> None:
    window, other = filled(), RobustWindow(256)
    other.load(json.loads(json.dumps(window.state())))
    for each in (2.5, 1.9, 2.0, 2.1):
        window.add(each)
        other.add(each)
    assert (window.middle, window.deviation, window.state()) == (other.middle, other.deviation, other.state())


def test_the_slope_is_not_moved_by_outliers() -> None:
    line = [0.5 * each for each in range(20)]
    line[3] = 1e30
    assert theil_sen(line) == pytest.approx(0.5)


def test_a_falling_series_hides_nothing() -> None:
    """A loss that falls by five of its deviations within a window: what stands out by ten is still seen."""
    draw, window, plain = random.Random(3), TrendWindow(256), RobustWindow(256)
    for number in range(400):
        value = 6.0 - 0.002 * number + draw.gauss(0, 0.1)
        window.add(value)
        plain.add(value)
    assert window.deviation == pytest.approx(0.1, rel=0.25)
    assert window.z(6.0 - 0.8 + 1.0) > 8
    assert plain.z(6.0 - 0.8 + 1.0) < 6


def test_a_trend_window_goes_on_from_its_state() -> None:
    draw, window, other = random.Random(4), TrendWindow(64), TrendWindow(64)
    for _ in range(100):
        window.add(draw.gauss(2, 0.1))
    other.load(json.loads(json.dumps(window.state())))
    for each in (2.5, 1.9, 2.0, 2.1):
        window.add(each)
        other.add(each)
    assert (window.middle, window.deviation, window.state()) == (other.middle, other.deviation, other.state())
