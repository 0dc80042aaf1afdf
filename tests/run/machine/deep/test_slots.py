"""Which slots are faulty, by their reports, and when nobody can tell."""

from collections.abc import Collection
from itertools import combinations

import pytest

from hornbook.run.machine.deep.slots import SlotFault, SlotProblem, SlotReport, judge

SOUND = {"fp32": ["a", "a"], "bf16": ["b", "b"]}
Pairs = Collection[tuple[int, int]]


def exchanged(slots: int, wrong: Pairs, numbers: Collection[int] = ()) -> list[SlotReport]:
    """Reports of slots whose pairs are right but for some; numbers: what they are called."""
    named = list(numbers or range(slots))
    echo: list[dict[str, float | None]] = [{} for _ in named]
    for low, high in combinations(range(slots), 2):
        echo[low][str(high)] = None if (low, high) in wrong else 900.0
    return [SlotReport(slot, SOUND, echo=found) for slot, found in zip(named, echo, strict=True)]


def blamed(reports: list[SlotReport]) -> tuple[list[int], list[str]]:
    faults, problems = judge(reports)
    assert {each.test for each in faults} <= {"echo"}
    assert {each.test for each in problems} <= {"echo"}
    return [each.slot for each in faults], [each.text for each in problems]


def test_the_majority_of_slots_is_right() -> None:
    odd, unsteady = {**SOUND, "bf16": ["c", "c"]}, {**SOUND, "fp32": ["a", "d"]}
    reports = [SlotReport(slot, golden) for slot, golden in enumerate((SOUND, SOUND, odd, unsteady))]
    faults, problems = judge(reports)
    assert [(each.slot, each.test) for each in faults] == [(3, "products"), (2, "products")]
    assert problems == []
    text = "bf16 products differ between slots 0, 1, without a majority"
    assert judge([SlotReport(0, SOUND), SlotReport(1, odd)]) == ([], [SlotProblem("products", text)])


@pytest.mark.parametrize("faulty", range(4))
def test_the_slot_whose_pairs_all_go_wrong_is_to_blame(faulty: int) -> None:
    """Whatever its number: not the other of each pair."""
    wrong = {pair for pair in combinations(range(4), 2) if faulty in pair}
    assert blamed(exchanged(4, wrong)) == ([faulty], [])
    others = ", ".join(str(slot) for slot in range(4) if slot != faulty)
    evidence = f"other bytes came back between it and slot {others}"
    assert judge(exchanged(4, wrong))[0] == [SlotFault(faulty, "echo", evidence)]


@pytest.mark.parametrize(
    ("slots", "wrong", "found"),
    [
        pytest.param(3, {(0, 1), (1, 2)}, [1], id="one of three"),
        pytest.param(4, {(0, 2), (1, 2)}, [2], id="most of its pairs"),
        pytest.param(5, {pair for pair in combinations(range(5), 2) if pair[0] < 2}, [0, 1], id="two of five"),
        pytest.param(2, set(), [], id="none"),
    ],
)
def test_a_minority_that_explains_all_wrong_pairs_is_to_blame(slots: int, wrong: Pairs, found: list[int]) -> None:
    assert blamed(exchanged(slots, wrong)) == (found, [])


@pytest.mark.parametrize(
    ("slots", "wrong"),
    [
        pytest.param(2, {(0, 1)}, id="one pair"),
        pytest.param(3, {(1, 2)}, id="one pair of three"),
        pytest.param(3, set(combinations(range(3), 2)), id="all of three"),
        pytest.param(4, {pair for pair in combinations(range(4), 2) if pair[0] < 2}, id="half of them"),
        pytest.param(4, {(0, 2), (0, 3), (1, 2), (1, 3)}, id="two halves"),
        pytest.param(5, {(0, 1), (0, 2), (0, 3), (0, 4), (2, 3)}, id="others are not sound among themselves"),
    ],
)
def test_where_nobody_can_tell_all_of_the_pairs_are_named(slots: int, wrong: Pairs) -> None:
    pairs = ", ".join(f"{low} and {high}" for low, high in sorted(wrong))
    assert blamed(exchanged(slots, wrong)) == ([], [f"other bytes came back between slots {pairs}"])


def test_slots_keep_their_numbers() -> None:
    assert blamed(exchanged(3, {(0, 1), (1, 2)}, (2, 5, 7))) == ([5], [])
    assert blamed(exchanged(2, {(0, 1)}, (0, 4))) == ([], ["other bytes came back between slots 0 and 4"])


def test_a_slot_that_failed_another_check_explains_its_pairs() -> None:
    one, other = exchanged(2, {(0, 1)}, (0, 4))
    faults, problems = judge([SlotReport(0, SOUND, "word 3", one.echo), other])
    assert [(each.slot, each.test) for each in faults] == [(0, "memory"), (0, "echo")]
    assert problems == []
    broken = [SlotReport(0, SOUND, echo={"1": None}), SlotReport(4, {}, error="was killed")]
    assert [(each.slot, each.test) for each in judge(broken)[0]] == [(4, "answer"), (4, "echo")]
