"""Orders of passes: complete, without deadlock, with the idle times and memory of the literature."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import accumulate, product

import pytest

from hornbook.parallel.axes.pipeline.cuts import cut_by_cost
from hornbook.parallel.axes.pipeline.pass_orders import (
    SPLIT,
    Action,
    Durations,
    Order,
    Schedule,
    bubble,
    chart,
    plan,
    rank_of,
    simulate,
    stages_of,
)

ALL: list[tuple[Schedule, int]] = [
    ("gpipe", 1),
    ("1f1b", 1),
    ("interleaved", 2),
    ("interleaved", 3),
    ("zb-h1", 1),
    ("zbv", 2),
    ("dualpipev", 2),
]


def most_under_way(order: Order, chunks: int) -> float:
    """Return the most microbatches whose activations a rank stores at once; each chunk counts for 1 / `chunks`."""
    changes = ({"F": 1, "B": -1, "W": -1, "I": 0}[action.kind] for action in order)
    return max(accumulate(changes)) / chunks


@pytest.mark.parametrize(
    ("schedule", "chunks", "share", "most"),
    [
        ("gpipe", 1, {8: 0.4375, 4: 0.375}, 16),
        ("1f1b", 1, {8: 0.4375, 4: 0.375}, 8),
        ("interleaved", 2, {8: 0.21875, 4: 0.1875}, 11.5),
        ("interleaved", 4, {8: 0.109375, 4: 0.09375}, 9.75),
        ("zb-h1", 1, {8: 7 / 48, 4: 0.125}, 8),
        ("zbv", 2, {8: 7 / 96, 4: 0.0625}, 8),
        ("dualpipev", 2, {8: 7 / 96, 4: 0.0625}, 8.5),
    ],
)
def test_idle_time_and_memory(schedule: Schedule, chunks: int, share: dict[int, float], most: float) -> None:
    """Of 8 ranks and 16 microbatches, of 4 and 8: measured in torch 2.13's own orders, but for zb-h1 (formula)."""
    for ranks, expected in share.items():
        assert bubble(simulate(plan(schedule, ranks, chunks, 2 * ranks))) == pytest.approx(expected)
    assert max(most_under_way(order, chunks) for order in plan(schedule, 8, chunks, 16)) == most


def test_dualpipev_with_crossing_passes() -> None:
    """(p - 1) / (3 m), where two passes that cross are one piece of work; apart they wait half as long."""
    for ranks, expected in ((8, 7 / 48), (4, 0.125)):
        assert bubble(simulate(plan("dualpipev", ranks, 2, 2 * ranks), crossing=True)) == pytest.approx(expected)


@pytest.mark.parametrize(("schedule", "chunks"), ALL)
def test_every_pass_is_computed_once_and_none_waits_for_ever(schedule: Schedule, chunks: int) -> None:
    for ranks, microbatches in product(range(2, 6), range(1, 12)):
        orders = plan(schedule, ranks, chunks, microbatches)
        simulate(orders)  # raises ValueError for a deadlock
        for rank, order in enumerate(orders):
            own = product(stages_of(schedule, rank, ranks, chunks), range(microbatches))
            passes = sorted(own)
            assert sorted(action[1:] for action in order if action.kind == "F") == passes
            assert sorted(action[1:] for action in order if action.kind in "BI") == passes
            late = sorted(action[1:] for action in order if action.kind == "W")
            assert late == sorted(action[1:] for action in order if action.kind == "I")
            assert bool(late) <= (schedule in SPLIT)


def messages(orders: Sequence[Order], schedule: Schedule, chunks: int) -> tuple[dict, dict]:
    """What is sent and received between two ranks, in order, by (hidden states or gradients, from, to)."""
    ranks, sent, received = len(orders), defaultdict(list), defaultdict(list)
    stages = ranks * chunks
    for rank, order in enumerate(orders):
        for kind, stage, number in (action for action in order if action.kind != "W"):
            step = 1 if kind == "F" else -1
            for target, other, into in ((stage + step, sent, True), (stage - step, received, False)):
                if 0 <= target < stages and (peer := rank_of(schedule, target, ranks)) != rank:
                    ends = (rank, peer) if into else (peer, rank)
                    other[kind == "F", *ends].append((target if into else stage, number))
    return sent, received


@pytest.mark.parametrize(("schedule", "chunks"), ALL)
def test_ranks_receive_in_the_order_in_which_others_send(schedule: Schedule, chunks: int) -> None:
    """Back-ends without tags match messages by their order."""
    for ranks, microbatches in product(range(2, 6), range(1, 12)):
        sent, received = messages(plan(schedule, ranks, chunks, microbatches), schedule, chunks)
        assert sent == received


def passes_until_a_stop(orders: Sequence[Order], schedule: Schedule, most: int) -> int:
    """How many passes ranks compute where at most `most` gradients that one sent may not be asked for yet."""
    ranks, stages = len(orders), 1 + max(action.stage for order in orders for action in order)
    at, leaving = [0] * ranks, [list[Action]() for _ in orders]
    sent, asked = set[Action](), set[Action]()

    def compute(rank: int, action: Action) -> bool:
        """Whether the next pass of a rank is computed; messages are named by the passes that they are for."""
        kind = "F" if action.kind == "F" else "I"
        behind, before = (action.stage + step for step in ((1, -1) if kind == "F" else (-1, 1)))
        mine, needed = action._replace(kind=kind), 0 <= before < stages and action.kind != "W"
        asked.add(mine)
        if needed and mine not in sent:
            return False
        result = Action(kind, behind, action.microbatch)
        if action.kind == "W" or not 0 <= behind < stages:
            return True
        if kind == "I" and rank_of(schedule, behind, ranks) != rank:
            if len(leaving[rank]) >= most and leaving[rank][0] not in asked:
                return False
            leaving[rank] = [*leaving[rank][len(leaving[rank]) >= most :], result]
        sent.add(result)
        return True

    moved = True
    while moved:
        moved = False
        for rank, order in enumerate(orders):
            while at[rank] < len(order) and compute(rank, order[at[rank]]):
                at[rank] += 1
                moved = True
    return sum(at)


@pytest.mark.parametrize(("schedule", "chunks"), ALL)
def test_waiting_for_gradients_that_were_sent_stops_no_schedule(schedule: Schedule, chunks: int) -> None:
    """With any bound: `Messages` takes the number of ranks."""
    for ranks, microbatches, most in product(range(2, 6), (1, 3, 8, 11), (1, 5)):
        orders = plan(schedule, ranks, chunks, microbatches)
        assert passes_until_a_stop(orders, schedule, most) == sum(map(len, orders))
    first, second = plan("1f1b", 2, 1, 4)
    late = [*(action for action in first if action.kind == "F"), *(action for action in first if action.kind == "B")]
    assert passes_until_a_stop([late[::-1], second], "1f1b", 1) < len(late) + len(second)


def test_orders_that_wait_for_each_other_are_found() -> None:
    first, second = plan("1f1b", 2, 1, 2)
    second = [Action("F", 1, 1), *(action for action in second if action != Action("F", 1, 1))]
    simulate([first, second])
    with pytest.raises(ValueError, match="ranks wait for each other: B0, F1"):
        simulate([[first[0], first[2], first[1], *first[3:]], second])


def test_the_chart() -> None:
    assert chart(simulate(plan("1f1b", 2, 1, 3))).splitlines() == [
        "rank 0  F0 F1 ......B0    F2 B1    ...B2",
        "rank 1  ...F0 B0    F1 B1    F2 B2",
    ]
    assert chart(simulate(plan("zbv", 2, 2, 1))).splitlines() == [
        "rank 0  F0a ........F0b I0b W0b ........I0a W0a",
        "rank 1  ....F0a F0b ........I0b W0b I0a W0a",
    ]


def test_messages_and_uneven_stages_take_time() -> None:
    even = simulate(plan("1f1b", 2, 1, 4))
    slow = simulate(plan("1f1b", 2, 1, 4), Durations(message=0.5))
    uneven = simulate(plan("1f1b", 2, 1, 4), shares=[0.8, 1.2])
    assert bubble(even) < min(bubble(slow), bubble(uneven))


def test_blocks_are_cut_by_cost() -> None:
    assert cut_by_cost([1.0] * 8, 4) == (0, 2, 4, 6, 8)
    assert cut_by_cost([1.0] * 8, 4, last=2.0) == (0, 2, 4, 7, 8)
    assert cut_by_cost([4.0, 1.0, 1.0, 1.0, 1.0], 2) == (0, 1, 5)
    assert cut_by_cost([1.0] * 5, 5) == (0, 1, 2, 3, 4, 5)
