"""The section of docs/figures.md about settings that do harm, and sets that need no guard."""

from typing import Any

from benchmarks.report import rows_of, section

ACTIONS = ("clip", "skip", "spike", "rollback", "pause")
FAILS = 1.03
"""A run fails if it ends so many times as high as its healthy twin."""


def guard_settings(found: dict[str, Any]) -> list[str]:
    """Learning rates that are too high, and small sets in which nothing is to be done."""
    lines = ["`python -m benchmarks.reliability.guard --parts rates sets --texts FOLDER`.", ""]
    if "rates" in found:
        lines += [
            "Losses at the end, over those of the healthy run, without the guard and with it (`auto`). Thresholds were "
            "chosen on the first half; the second has other lengths and other text.",
            *rows_of(
                ["half", "model", "steps", "learning rate", "without", "with", "what it did", "verdict"],
                _table(found["rates"]["rows"]),
            ),
        ]
    if "sets" in found:
        rows = [
            (row["set"], row["rows"], row["epochs"], row["steps"], f"{row['first']:.3f}", f"{row['last']:.3f}", did)
            for row in found["sets"]["rows"]
            for did in [_actions(row["did"])]
        ]
        quiet = sum(row["did"] == [] for row in found["sets"]["rows"])
        lines += [
            f"Small sets of real text: the guard does nothing in {quiet} of {len(rows)}.",
            *rows_of(["set", "rows", "epochs", "steps", "first loss", "last loss", "what it did"], rows),
        ]
    return section("The guard and settings", *lines)


def _table(rows: list[dict[str, Any]]) -> list[list[object]]:
    """Rows of a table: what each half missed, and what it did for nothing."""
    found = list[list[object]]()
    for row in rows:
        acted, fails = "rollback" in row["did"] or "pause" in row["did"], row.get("without", 1.0) > FAILS
        verdict = ("reacted" if acted else "missed") if fails else ("false alarm" if acted else "quiet")
        ends = [f"{row[key]:.3f}" if key in row else "-" for key in ("without", "with")]
        found.append([row["half"], row["size"], row["steps"], row["cell"], *ends, _actions(row["did"]), verdict])
    return found


def _actions(did: list[str]) -> str:
    """`1 skip, 1 rollback`."""
    return ", ".join(f"{did.count(kind)} {kind}" for kind in ACTIONS if kind in did) or "nothing"
