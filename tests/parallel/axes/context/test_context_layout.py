"""Which positions each rank has."""

import pytest

from hornbook.model.attention.mask import AttentionMask
from hornbook.parallel.axes.context.context_layout import by_cost, divide_rows, head_tail

LENGTH = 1030


def work(mask: AttentionMask, ranks: int, rows: int, length: int = LENGTH) -> list[int]:
    """Pairs of query and key of each rank."""
    intervals = [mask.intervals(length, length, row) for row in range(rows)]
    costs = [sum(int(ends[at] - starts[at]) for starts, ends in intervals) for at in range(length)]
    parts = divide_rows(mask, ranks, length, rows)
    return [sum(sum(costs[first:end]) for first, end in spans) for spans in parts]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize(
    ("mask", "most"),
    [
        (AttentionMask(), 1.03),
        (AttentionMask("bidirectional"), 1.03),
        (AttentionMask(lengths=((900, 130),)), 1.15),
        (AttentionMask("bidirectional", lengths=((900, 130),)), 1.15),
    ],
)
def test_every_position_has_one_rank_and_ranks_have_equal_work(mask: AttentionMask, most: float, ranks: int) -> None:
    parts = divide_rows(mask, ranks, LENGTH, 1)
    places = sorted(at for spans in parts for first, end in spans for at in range(first, end))
    assert places == list(range(len(places)))
    assert LENGTH <= len(places) < LENGTH + 8 * ranks
    assert len({sum(end - first for first, end in spans) for spans in parts}) == 1
    found = work(mask, ranks, 1)
    assert max(found) < most * sum(found) / ranks, found


def test_contiguous_parts_would_leave_the_first_rank_idle() -> None:
    """What the layout is for: half of a causal mask's work is in the last quarter of the positions, and more."""
    assert head_tail(2, 8) == (((0, 2), (6, 8)), ((2, 6),))
    mask = AttentionMask()
    starts, ends = mask.intervals(LENGTH, LENGTH)
    pairs = (ends - starts).cumsum(0)
    assert int(pairs[LENGTH // 2]) < 0.3 * int(pairs[-1])


def test_the_dearest_chunks_go_to_different_ranks() -> None:
    starts, ends = AttentionMask().intervals(64, 64)
    parts = by_cost(ends - starts, 2)
    assert [spans[-1][1] for spans in parts] != [64, 64]
    assert sum(end - first for first, end in parts[0]) == 32
