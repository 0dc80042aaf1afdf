"""The steps of the refinery: edits, signals and decisions, joined to their configs by one table each.

A new step is a frozen config in `text/config.py` and one entry here. An edit is `text -> text`. A signal is a
number per document, kept in a column. A decision sees the columns of all documents that are still kept, in
(task, row) order, and says which to drop; so local and global decisions are one thing, and none depends on workers.
"""

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from hornbook.text.config import DropEmpty, ExactDedup, Normalize, StepConfig

Edit = Callable[[str], str]
Columns = Mapping[str, np.ndarray]

_LINE_ENDS = re.compile(r"\r\n?")
_CONTROLS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_VISIBLE = re.compile(r"[^\s\u200b-\u200f\u2028-\u202f\u205f-\u2064\ufeff]")


def normalize_edit(config: Normalize) -> Edit:
    """Line ends to LF, C0 and C1 controls but tab and LF removed, then the Unicode form (in this order: a
    control between a letter and its accent would hide them from each other)."""

    def edit(text: str) -> str:
        text = _CONTROLS.sub("", _LINE_ENDS.sub("\n", text))
        if config.form == "none" or text.isascii():
            return text
        return unicodedata.normalize(config.form, text)

    return edit


EDITS: dict[str, Callable[[Any], Edit]] = {"normalize": normalize_edit}

SIGNALS: dict[str, Callable[[str], int]] = {
    "characters": len,
    "visible": lambda text: int(_VISIBLE.search(text) is not None),
}
"""Columns measured on every edited document, besides its bytes and its 128-bit hash."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`drop(config, columns)` gives a mask over the rows still kept; `reason` names it in the funnel."""

    reason: str
    drop: Callable[[Any, Columns], np.ndarray]


def drop_empty(config: DropEmpty, columns: Columns) -> np.ndarray:
    """Documents without a visible character."""
    del config
    return columns["visible"] == 0


def drop_exact_duplicates(config: ExactDedup, columns: Columns) -> np.ndarray:
    """All but the first document of each hash. `columns["hash"]` is [rows, 2] uint64."""
    del config
    high, low = columns["hash"][:, 0], columns["hash"][:, 1]
    order = np.lexsort((low, high))  # stable: equal hashes stay in (task, row) order
    high, low = high[order], low[order]
    drop = np.zeros(len(order), dtype=bool)
    drop[order[1:]] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
    return drop


DECISIONS: dict[str, Decision] = {
    "drop_empty": Decision("empty", drop_empty),
    "exact_dedup": Decision("exact duplicate", drop_exact_duplicates),
}

KEPT = "kept"


def build_edit(steps: list[StepConfig]) -> Edit:
    """All edits of the steps as one."""
    edits = [EDITS[step.kind](step) for step in steps if step.kind in EDITS]

    def edit(text: str) -> str:
        for one in edits:
            text = one(text)
        return text

    return edit


def decide(steps: list[StepConfig], columns: Columns) -> tuple[list[str], np.ndarray]:
    """(names of reasons, uint8 [rows] index into them); 0 is "kept". A row falls to the first step that drops it."""
    names = [KEPT]
    rows = len(columns["hash"])
    reasons = np.zeros(rows, dtype=np.uint8)
    for step in steps:
        decision = DECISIONS.get(step.kind)
        if decision is None:
            continue
        if decision.reason not in names:
            names.append(decision.reason)
        alive = np.flatnonzero(reasons == 0)
        dropped = decision.drop(step, {name: column[alive] for name, column in columns.items()})
        reasons[alive[dropped]] = names.index(decision.reason)
    return names, reasons


def content_hash(data: bytes) -> bytes:
    """16 bytes: xxh3_128 of the edited text in UTF-8. It names the document's cluster of exact duplicates."""
    return xxhash.xxh3_128_digest(data)
