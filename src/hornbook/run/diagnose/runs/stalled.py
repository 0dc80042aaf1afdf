"""Which shards the steps read that waited longest for their batch."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from hornbook.errors import HornbookError
from hornbook.run.diagnose.runs.history import RunHistory
from hornbook.run.observe.exposure import loader_of

WORST, ROWS, SHOWN = 5, 64, 3
"""Steps that are looked at, rows of each, and shards that are named."""


def stalled_shards(history: RunHistory, steps: int = 200) -> str:
    """`; they read prose/00003 (41 rows), ...` of the newest `steps` steps' longest waits; "" where it is not known."""
    newest = [
        each for each in history.steps[-steps:] if "first_sample" in each and each.get("data_seconds") is not None
    ]
    worst = sorted(newest, key=lambda each: -each["data_seconds"])[:WORST]
    try:
        index = loader_of(history.run).index
        counts = Counter(shard for step in worst for shard in _shards(index, step))
    except (HornbookError, OSError):  # the data is gone, or damaged: that is told elsewhere
        return ""
    named = ", ".join(f"{shard} ({count} rows)" for shard, count in counts.most_common(SHOWN))
    return f"; the {len(worst)} steps that waited longest read {named}" if named else ""


def _shards(index: Any, step: Mapping[str, Any]) -> Iterable[str]:
    """Of each row of a step, the shards that it has documents of."""
    first = step["first_sample"]
    for sample in range(first, first + min(step.get("num_samples", 1), ROWS)):
        yield from {each.shard for each in index.documents(sample)}
