"""How often each rank was named alone, by the ledger."""

from collections import Counter
from typing import Any

import pytest

from hornbook.run.ledger.decisions import fold_named, is_suspect


def audit(found: str, *ranks: int, **more: Any) -> dict[str, Any]:
    return {"kind": "audit", "found": found, "ranks": [*ranks], **more}


def named(*records: dict[str, Any]) -> dict[int, int]:
    counts = Counter[int]()
    for record in records:
        fold_named(counts, record)
    return dict(counts)


def test_only_a_rank_that_is_named_alone_counts() -> None:
    records = (audit("transient", 1), audit("transient", 0, 1), audit("no memory", 2), {"kind": "save"})
    assert named(*records, audit("transient", 1), audit("transient", 3, accuses=False)) == {1: 2}
    assert [is_suspect(Counter({1: 1}), ranks) for ranks in ([1], [0], [0, 1], [])] == [True, False, False, False]


def test_a_rank_that_was_acted_upon_starts_anew() -> None:
    assert named(audit("transient", 1), audit("transient", 2), audit("persistent", 1)) == {2: 1}


@pytest.mark.parametrize(
    ("record", "kept"),
    [
        ({"kind": "machine_check", "cordoned": []}, True),
        ({"kind": "machine_check", "cordoned": [{"slot": 0}]}, False),
        ({"kind": "resume", "changes": [{"key": "optim.lr", "new": 1}]}, True),
        ({"kind": "resume", "changes": [{"key": "parallel.data", "new": 1}]}, False),
        ({"kind": "restart"}, True),
    ],
)
def test_ranks_that_got_other_slots_start_anew(record: dict[str, Any], kept: bool) -> None:
    assert named(audit("transient", 1), record) == ({1: 1} if kept else {})
