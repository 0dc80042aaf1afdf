"""Records of the guard: its decisions, and the ranks that computing again has named alone.

The first passing fault of a rank may be chance, the next is no accident.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

TRUSTED = 1
"""Passing faults of one rank after which the next counts as a fault that stays."""


@dataclass(frozen=True)
class Decision:
    """A decision of before, as the ledger has it."""

    kind: Literal["rollback", "overlay", "swap"]
    step: int
    """The last step that was done before it."""
    effective_step: int
    """Steps done where it takes effect."""
    left_out: int = 0
    """Steps whose data is left out."""
    words: str = ""
    """Of a swap: the setting."""


def decisions_of(record: Mapping[str, Any]) -> list[Decision]:
    """The decisions that a record of the ledger holds."""
    if record.get("kind") != "rollback":
        return []
    step, at = record["step"], record["effective_step"]
    found = [Decision("rollback", step, at, record["left_out"])]
    if made := record.get("intervention"):
        swap = made.get("swap", "")
        found.append(Decision("swap" if swap else "overlay", step, at, words=swap))
    return found


def is_suspect(named: Counter[int], ranks: list[int]) -> bool:
    """Whether a passing fault of these ranks is one of a rank alone that has had too many."""
    return len(ranks) == 1 and named[ranks[0]] >= TRUSTED


def fold_named(named: Counter[int], record: Mapping[str, Any]) -> None:
    """Count how often each rank was named alone, by one more record of the ledger.

    A rank whose fault stays was acted upon, and starts anew. Ranks that have got other slots all do.
    """
    kind, ranks = record.get("kind"), record.get("ranks", ())
    moved = any(change["key"].startswith("parallel.") for change in record.get("changes", ()))
    if moved or (kind == "machine_check" and record.get("cordoned")):
        named.clear()
    if kind != "audit":
        return
    if record.get("found") == "persistent":
        for rank in ranks:
            named.pop(rank, None)
    elif record.get("found") == "transient" and len(ranks) == 1 and record.get("accuses", True):
        named[ranks[0]] += 1
