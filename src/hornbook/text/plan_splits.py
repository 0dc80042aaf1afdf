"""From dates to splits: the moment from which a source is held out, and what is told about its documents.

One pass over the dates of a source, one over the clusters of all where equal texts are left; memory holds 8 bytes a
document for `newest`, and the clusters of later documents where equal texts are left.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.errors import IntegrityError
from hornbook.text.config.dates import Since, interval, spell
from hornbook.text.config.text import SourceConfig
from hornbook.text.splits import Split, is_later
from hornbook.text.store import read_batches


@dataclass(slots=True)
class LaterCounts:
    """What was found about the dates of one source."""

    since: str | None
    """Documents from this moment on are held out; None where the newest moment has more documents than asked for."""
    documents: int = 0
    """Held out."""
    repeated: int = 0
    """Later, but equal to a document from before."""
    undecided: int = 0
    """Their date says neither before nor after, as a year does."""
    undated: int = 0
    """Without a date, or with one that cannot be read."""
    first: str = ""
    """Path and row of the first of those, and its date."""

    def notes(self, source: str) -> Iterator[str]:
        """What a person should know."""
        name = f"source {source!r}"
        if self.since is None:
            yield f"{name}: nothing is held out by date: more documents than asked for are of the newest moment"
        else:
            yield f"{name}: {self.documents} documents from {self.since} on are held out as {source}@later"
        rest = "go where text.validation puts them"
        if self.repeated:
            yield f"{name}: {self.repeated} later documents are equal to earlier ones and {rest}"
        if self.undecided:
            yield f"{name}: the dates of {self.undecided} documents say neither before nor after; they {rest}"
        if self.undated:
            yield f"{name}: {self.undated} documents have no date that can be read; they {rest} (first: {self.first})"

    def to_json(self) -> dict[str, Any]:
        """As in tokens/index.json."""
        return asdict(self)


def plan_splits(
    shards: Mapping[str, list[Path]], sources: Mapping[str, SourceConfig], share: float, *, unique: bool, strict: bool
) -> tuple[dict[str, Split], dict[str, LaterCounts]]:
    """The split of each source, and counts of those that are split by time.

    shards: documents of each source. unique: no two documents are equal. strict: raise IntegrityError where a
    document of a source that is split by time has no date that can be read.
    """
    moments = {name: _since(each, shards[name]) for name, each in sources.items() if each.later is not None}
    known = _known({n: p for n, p in shards.items() if sources[n].split != "validation"}, moments, unique)
    splits = {name: Split(share, each.split, moments.get(name), known) for name, each in sources.items()}
    counts = {name: _count(splits[name], shards[name]) for name in moments}
    bad = next((name for name, each in counts.items() if strict and each.undated), None)
    if bad is not None:
        raise IntegrityError(
            f"source {bad!r}: {counts[bad].undated} documents have no date that can be read (first: "
            f"{counts[bad].first}); set its date_field or date, or run without text.strict"
        )
    return splits, counts


def _rows(shards: list[Path], *columns: str) -> Iterator[dict[str, Any]]:
    for shard in shards:
        for batch in read_batches(shard, list(columns)):
            yield from batch.to_pylist()


def _since(source: SourceConfig, shards: list[Path]) -> int | None:
    """The first moment that is held out."""
    if isinstance(source.later, Since):
        return interval(source.later.date)[0]
    assert source.later is not None
    begins = np.sort(np.fromiter(_begins(shards), np.int64))
    first = len(begins) - int(source.later.share * len(begins))
    if first < len(begins) and first and begins[first - 1] == begins[first]:
        first = int(np.searchsorted(begins, begins[first], side="right"))
    return int(begins[first]) if first < len(begins) else None


def _begins(shards: list[Path]) -> Iterator[int]:
    for row in _rows(shards, "date"):
        try:
            yield interval(row["date"] or "")[0]
        except ValueError:
            continue


def _known(shards: Mapping[str, list[Path]], moments: Mapping[str, int | None], unique: bool) -> frozenset[str]:
    """Clusters that have documents on both sides."""
    if unique or not moments:
        return frozenset()
    later = {
        row["cluster"]
        for name, since in moments.items()
        for row in _rows(shards[name], "cluster", "date")
        if is_later(row["date"], since)
    }
    return frozenset(
        row["cluster"]
        for name, paths in shards.items()
        for row in _rows(paths, "cluster", "date")
        if row["cluster"] in later and not is_later(row["date"], moments.get(name))
    )


def _count(split: Split, shards: list[Path]) -> LaterCounts:
    found = LaterCounts(None if split.since is None else spell(split.since))
    for row in _rows(shards, "cluster", "date", "origin"):
        try:
            begin, end = interval(row["date"] or "")
        except ValueError as error:
            found.undated += 1
            found.first = found.first or f"{row['origin']}, {error if row['date'] else 'no date'}"
            continue
        if split.since is None:
            continue
        if begin >= split.since:
            found.documents += row["cluster"] not in split.known
            found.repeated += row["cluster"] in split.known
        else:
            found.undecided += end > split.since
    return found
