"""Thinning keeps what is seen, medians pass over gaps, spikes are found and noise is not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.studio.series import Numbers, find_spikes, moving_median, thin


@given(
    st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(float("nan"))), min_size=1, max_size=400),
    st.integers(1, 40),
)
def test_thinned_curves_have_the_extremes_of_every_column(values: list[float], columns: int) -> None:
    x, y = np.arange(float(len(values))), np.array(values)
    low, high = 0.0, max(float(len(values) - 1), 1.0)
    kept = thin(x, y, columns, low, high)
    assert np.all(np.diff(kept) > 0)
    assert kept[0] == 0
    assert kept[-1] == len(x) - 1
    assert len(kept) <= max(2 * columns, 3 * columns + 2)
    part = np.clip((x / (high - low) * columns).astype(int), 0, columns - 1)
    for column in set(part.tolist()):
        whole, thinned = y[part == column], y[kept][part[kept] == column]
        assert np.isnan(whole).any() == np.isnan(thinned).any()
        if not np.isnan(whole).all():
            assert (np.nanmin(whole), np.nanmax(whole)) == (np.nanmin(thinned), np.nanmax(thinned))


def test_short_curves_stay_whole() -> None:
    x = np.arange(10.0)
    assert thin(x, x, 5, 0, 9).tolist() == list(range(10))


def test_a_moving_median_passes_over_gaps_and_spikes() -> None:
    places, medians = moving_median(np.array([1.0, 2.0, np.nan, 4.0, 900.0, 5.0]), 3)
    assert places.tolist() == [0, 1, 2, 3, 4, 5]
    assert medians.tolist() == [1.5, 1.5, 3.0, 452.0, 5.0, 452.5]
    assert moving_median(np.array([1.0, np.nan, 3.0]), 1)[0].tolist() == [0, 2]
    places, medians = moving_median(np.arange(100_000.0), 2001)
    assert len(places) == 200
    assert medians[1:-1].tolist() == pytest.approx(places[1:-1].tolist(), abs=700)
    assert (places[0], places[-1]) == (0, 99_999)


def noisy_loss(steps: int = 1000) -> np.ndarray:
    draw = np.random.default_rng(3)
    return 3 + 6 * np.exp(-np.arange(steps) / 150) + 0.05 * draw.standard_normal(steps)


def test_a_falling_noisy_loss_has_no_spike() -> None:
    assert list(find_spikes(noisy_loss())) == []
    assert list(find_spikes(np.full(200, 2.0))) == []


def test_a_spike_is_its_highest_step() -> None:
    loss = noisy_loss()
    loss[400:404] += [0.9, 2.5, 1.2, 0.8]
    found = list(find_spikes(loss))
    assert [spike.at for spike in found] == [401]
    assert found[0].peak == loss[401]
    assert found[0].before == pytest.approx(loss[350:400].mean(), abs=0.2)


def test_a_loss_that_stays_up_is_one_spike_and_then_the_level() -> None:
    loss = noisy_loss()
    loss[500:] += 3
    loss[800] += 2
    found = list(find_spikes(loss))
    assert len(found) == 2
    assert 500 <= found[0].at < 550
    assert found[1].at == 800


def test_losses_that_are_not_finite_are_no_spike() -> None:
    loss = noisy_loss()
    loss[500] = np.nan
    assert list(find_spikes(loss)) == []


def thinned_slowly(x: Numbers, y: Numbers, columns: int, low: float, high: float) -> list[int]:
    """Part by part: its first gap, its minimum and its maximum, and both ends of all."""
    kept = {0, len(x) - 1}
    parts = [min(max(int((at - low) / (high - low) * columns), 0), columns - 1) for at in x.tolist()]
    for part in set(parts):
        inside = [i for i, each in enumerate(parts) if each == part]
        known = [i for i in inside if not np.isnan(y[i])]
        kept |= {next(i for i in inside if np.isnan(y[i]))} if len(known) < len(inside) else set()
        kept |= {min(known, key=lambda i: y[i]), max(known, key=lambda i: y[i])} if known else set()
    return sorted(kept)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("gaps", [0.0, 0.3, 1.0])
def test_thinned_points_are_those_of_a_slow_search(seed: int, gaps: float) -> None:
    draw = np.random.default_rng(seed)
    x = np.cumsum(draw.integers(1, 5, size=500)).astype(np.float64)
    y = np.round(draw.normal(size=500), 1)  # with ties
    y[draw.random(500) < gaps] = np.nan
    y[draw.integers(500, size=3)] = np.inf if gaps < 1 else np.nan
    low, high = (0.0, float(x[-1])) if seed % 2 else (float(x[50]), float(x[400]))
    assert thin(x, y, 40, low, high).tolist() == thinned_slowly(x, y, 40, low, high)
