"""Which documents are held out: a share of them by what they say, and the later ones by when they were written.

What is held out by its date is a source of its own, NAME@later, so that its loss stands beside that of NAME: one says
how a model does on text younger than all it has read, the other on text of the same time. To plan that takes one pass
over the dates of a source, and one over the clusters of all where equal texts are left; memory holds 8 bytes a document
for `newest`, and the clusters of later documents where equal texts are left.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from hornbook.errors import IntegrityError
from hornbook.text.config.dates import Since, interval, spell
from hornbook.text.config.text import SourceConfig
from hornbook.text.store import read_rows

Subset = Literal["train", "validation", "later"]
SUBSETS: dict[Subset, tuple[str, str]] = {
    "train": ("train", ""),
    "validation": ("validation", ""),
    "later": ("validation", "@later"),
}
"""Subset of a source -> the split that it belongs to, and what is added to the name of the source."""

_SPLIT_SEED = 0x686F726E626F6F6B  # "hornbook": changing it would move documents between the splits


_CERTAIN = 50
"""Expected number of held-out documents from which on nobody looks whether there is one."""
_MOST_HELD = 0.2
"""Largest share of the bytes that is held out although `text.validation` asks for less."""


def is_validation(cluster: str, share: float) -> bool:
    """Whether a cluster of equal documents (hex hash) is held out: a hash of its name below `share`."""
    return _hash(cluster) < share * 2.0**64


def _hash(cluster: str) -> int:
    return xxhash.xxh3_64_intdigest(cluster.encode(), seed=_SPLIT_SEED)


def share_held_out(
    shards: Mapping[str, list[Path]], sources: Mapping[str, SourceConfig], share: float
) -> tuple[float, str]:
    """(the share to split by, a note where `share` would hold nothing out of few documents).

    The document with the lowest hash is held out then, unless it has more than a fifth of all bytes.
    """
    paths = [path for name, each in shards.items() if sources[name].split is None for path in each]
    given = any(shards[name] for name, each in sources.items() if each.split == "validation")
    try:
        count = sum(pq.read_metadata(path).num_rows for path in paths)
        if not share or not count or count * share > _CERTAIN or given:
            return share, ""
        lowest, size, total = _lowest_hash(paths)
    except (OSError, pa.ArrowException):  # a damaged shard is an error where it is encoded
        return share, ""
    enough = math.nextafter(lowest / 2.0**64, 1.0)
    if enough <= share:
        return share, ""
    none = f"text.validation {share:g} holds out none of {count:,} documents"
    part = f"{size / max(total, 1):.0%} of the bytes"
    if size <= _MOST_HELD * total:
        return enough, f"{none}: the one with the lowest hash is held out ({part})"
    larger = f"--text.validation {math.ceil(enough * 1000) / 1000:g} holds out one ({part})"
    return share, f"{none}, so nothing can be evaluated: {larger if size < total else 'add more text'}"


def _lowest_hash(paths: list[Path]) -> tuple[int, int, int]:
    """(the lowest hash of a document, bytes of the documents that have it, bytes of all)."""
    lowest, size, total = 2**64, 0, 0
    for row in _rows(paths, "cluster", "bytes"):
        value = _hash(row["cluster"])
        size = row["bytes"] if value < lowest else size + row["bytes"] * (value == lowest)
        lowest, total = min(lowest, value), total + row["bytes"]
    return lowest, size, total


def is_later(date: str | None, since: int | None) -> bool:
    """Whether a document is certainly from a moment or after it; "2024" is not, seen from July of that year."""
    if since is None:
        return False
    moment = _moment(date)
    return moment is not None and moment >= since


def _moment(date: str | None) -> int | None:
    """The first moment of a date; None where there is none that can be read."""
    try:
        return interval(date or "")[0]
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Split:
    """Where the documents of one source go."""

    share: float = 0.0
    """Share of them that is held out by a hash of their content."""
    whole: Literal["train", "validation"] | None = None
    """Where all of them go."""
    since: int | None = None
    """From which moment on (`hornbook.text.config.dates`) they are held out."""
    known: frozenset[str] = frozenset()
    """Clusters of later documents that are there from before too: those go where their equals go."""

    @property
    def columns(self) -> list[str]:
        """Columns of documents that `subset` asks for."""
        return ["cluster"] if self.since is None else ["cluster", "date"]

    def subset(self, row: dict[str, Any]) -> Subset:
        """The subset that a document belongs to."""
        cluster = row["cluster"]
        if self.whole is not None:
            return self.whole
        if self.since is not None and is_later(row["date"], self.since) and cluster not in self.known:
            return "later"
        return "validation" if is_validation(cluster, self.share) else "train"

    def to_json(self) -> list[Any]:
        """For keys."""
        return [self.share, self.whole, self.since, sorted(self.known)]


@dataclass(slots=True)
class LaterCounts:
    """The documents of one source, counted by what their dates say."""

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
        yield from read_rows(shard, list(columns))


def _since(source: SourceConfig, shards: list[Path]) -> int | None:
    """The first moment that is held out."""
    if isinstance(source.later, Since):
        return interval(source.later.date)[0]
    assert source.later is not None
    moments = (_moment(row["date"]) for row in _rows(shards, "date"))
    starts = np.sort(np.fromiter((moment for moment in moments if moment is not None), np.int64))
    first = len(starts) - int(source.later.share * len(starts))
    if first < len(starts) and first and starts[first - 1] == starts[first]:
        first = int(np.searchsorted(starts, starts[first], side="right"))
    return int(starts[first]) if first < len(starts) else None


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
    counts = LaterCounts(None if split.since is None else spell(split.since))
    for row in _rows(shards, "cluster", "date", "origin"):
        try:
            start, end = interval(row["date"] or "")
        except ValueError as error:
            counts.undated += 1
            counts.first = counts.first or f"{row['origin']}, {error if row['date'] else 'no date'}"
            continue
        if split.since is None:
            continue
        if start >= split.since:
            counts.documents += row["cluster"] not in split.known
            counts.repeated += row["cluster"] in split.known
        else:
            counts.undecided += end > split.since
    return counts
