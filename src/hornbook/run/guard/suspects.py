"""Ranks that computing again has named alone, by the ledger: the first time may be chance, the next is no accident."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

TRUSTED = 1
"""Passing faults of one rank after which the next counts as a fault that stays."""


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
