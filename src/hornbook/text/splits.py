"""Which documents are held out: a share of them by what they say, and the later ones by when they were written.

What is held out by its date is a source of its own, NAME@later, so that its loss stands beside that of NAME: one says
how a model does on text younger than all it has read, the other on text of the same time.
"""

from dataclasses import dataclass
from typing import Any, Literal

import xxhash

from hornbook.text.config.dates import interval

Subset = Literal["train", "validation", "later"]
SUBSETS: dict[Subset, tuple[str, str]] = {
    "train": ("train", ""),
    "validation": ("validation", ""),
    "later": ("validation", "@later"),
}
"""Subset of a source -> the split that it belongs to, and what is added to the name of the source."""

_SPLIT_SEED = 0x686F726E626F6F6B  # "hornbook": changing it would move documents between the splits


def is_validation(cluster: str, share: float) -> bool:
    """Whether a cluster of equal documents (hex hash) is held out: a hash of its name below `share`."""
    return xxhash.xxh3_64_intdigest(cluster.encode(), seed=_SPLIT_SEED) < share * 2.0**64


def is_later(date: str | None, since: int | None) -> bool:
    """Whether a document is certainly from a moment or after it; "2024" is not, seen from July of that year."""
    if since is None or not date:
        return False
    try:
        return interval(date)[0] >= since
    except ValueError:
        return False


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
