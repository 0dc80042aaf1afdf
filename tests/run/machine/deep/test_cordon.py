"""Which slots are left out, and for how long."""

import json
from pathlib import Path

import pytest

from hornbook.run.machine.deep.cordon import SECONDS, CordonList
from hornbook.run.machine.deep.slots import SlotFault

HOUR, FAULT = 3600.0, SlotFault(1, "memory", "word 3")


class Clocked:
    """A cordon list, and the clock that it sees."""

    def __init__(self, path: Path) -> None:
        self.now = 1e9
        self.list = CordonList(path, lambda: self.now)


@pytest.fixture
def cordon(tmp_path: Path) -> Clocked:
    return Clocked(tmp_path / "cordon.json")


def test_a_slot_that_fails_once_is_back_after_a_day(cordon: Clocked) -> None:
    added = cordon.list.add([FAULT, SlotFault(1, "products", "differ"), SlotFault(2, "memory", "word 4")])
    assert [(each.slot, each.test, each.until) for each in added] == [
        (1, "memory", 1e9 + SECONDS),
        (2, "memory", 1e9 + SECONDS),
    ]
    cordon.now += SECONDS - 1
    assert cordon.list.slots() == {1, 2}
    cordon.now += 1
    assert cordon.list.slots() == set()


@pytest.mark.parametrize(("hours", "lasts"), [(0, True), (23, True), (24, False), (1000, False)])
def test_a_slot_that_fails_within_a_day_of_its_return_is_out_for_good(
    cordon: Clocked, hours: float, lasts: bool
) -> None:
    cordon.list.add([FAULT])
    cordon.now += SECONDS + hours * HOUR
    assert cordon.list.slots() == set()
    (entry,) = cordon.list.add([FAULT])
    assert (entry.until is None) == lasts
    assert cordon.list.add([SlotFault(2, "memory", "word 3")])[0].until is not None, "another slot"
    cordon.now += 100 * SECONDS
    assert cordon.list.slots() == ({1} if lasts else set())


def test_a_person_puts_slots_back(cordon: Clocked) -> None:
    """One that fails within a day of that is out again, until a person puts it back once more."""
    cordon.list.add([SlotFault(2, "memory", "word 3")])
    cordon.now += 3 * SECONDS
    cordon.list.add([FAULT])
    assert [each.slot for each in cordon.list.lift()] == [1], "slot 2 was back already"
    assert cordon.list.slots() == set()
    assert cordon.list.lift() == []
    cordon.now += HOUR
    assert [each.until for each in cordon.list.add([FAULT, SlotFault(2, "memory", "word 3")])] == [
        None,
        cordon.now + SECONDS,
    ]
    cordon.now += 100 * SECONDS
    assert [each.slot for each in cordon.list.lift()] == [1]
    cordon.now += 2 * SECONDS
    assert cordon.list.add([FAULT])[0].until is not None


def test_a_file_of_a_former_version_is_read(tmp_path: Path, cordon: Clocked) -> None:
    entry = {"slot": 1, "test": "memory", "evidence": "word 3", "since": 1e9 - SECONDS, "until": 1e9 - 1}
    lasting = {**entry, "slot": 2, "until": None}
    (tmp_path / "cordon.json").write_text(json.dumps({"cordoned": [entry, lasting]}))
    assert cordon.list.slots() == {2}
    assert cordon.list.add([FAULT])[0].until is None
    assert cordon.list.slots() == {1, 2}
