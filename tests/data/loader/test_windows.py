import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hornbook.data.loader.windows import merge_windows, position_of, positions_of

windows = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 15)).map(lambda w: (w[0], w[0] + w[1])), max_size=6)


@given(windows)
def test_equals_walking_over_all_positions(skipped: list[tuple[int, int]]) -> None:
    left = [p for p in range(200) if not any(first <= p < end for first, end in skipped)]
    assert [position_of(clock, skipped) for clock in range(100)] == left[:100]
    assert positions_of(0, 100, merge_windows(skipped)).tolist() == left[:100]
    assert positions_of(37, 21, merge_windows(skipped)).tolist() == left[37:58]


@given(windows, windows)
def test_merging_is_idempotent_and_needs_no_order(some: list[tuple[int, int]], more: list[tuple[int, int]]) -> None:
    merged = merge_windows([*some, *more])
    assert merge_windows([*merged, *some]) == merged == merge_windows([*more, *some])
    assert all(a < b for a, b in merged)
    assert all(b < c for (_, b), (c, _) in itertools.pairwise(merged))


def test_far_clock_and_no_windows() -> None:
    assert position_of(10**15, [(3, 10)]) == 10**15 + 7
    assert positions_of(5, 0, ((1, 2),)).tolist() == []
    assert positions_of(10**15, 2, ()).dtype == np.int64


def test_a_window_that_runs_backwards_is_refused() -> None:
    with pytest.raises(ValueError, match="0 <= a <= b"):
        merge_windows([(5, 3)])
