"""The funnel: rows in = kept + dropped + quarantined, exactly, by source and reason."""

from collections import defaultdict
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(slots=True)
class Tally:
    """Rows, and bytes of text as read."""

    rows: int = 0
    bytes: int = 0

    def add(self, rows: int, size: int) -> None:
        """Add rows."""
        self.rows += rows
        self.bytes += size


@dataclass(slots=True)
class SourceFunnel:
    """The outcome of the rows of one source."""

    kept: Tally = field(default_factory=Tally)
    dropped: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    """By reason."""
    quarantined: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    """Rows that could not be read, by reason."""
    text_bytes: int = 0
    """UTF-8 bytes of the kept text after the edits."""
    files: int = 0
    changed: dict[str, list[int]] = field(default_factory=dict)
    """Changes by edits and cuts in kept documents: counter -> [documents, changes] (of `cut`: bytes)."""

    @property
    def read(self) -> Tally:
        """The rows of every outcome."""
        parts = [self.kept, *self.dropped.values(), *self.quarantined.values()]
        return Tally(sum(part.rows for part in parts), sum(part.bytes for part in parts))

    def count_changes(self, changed: dict[str, list[int]]) -> None:
        """Add the changes by edits and cuts; counters without changes are left out."""
        for name, (documents, changes) in changed.items():
            if documents:
                before = self.changed.get(name, [0, 0])
                self.changed[name] = [before[0] + documents, before[1] + changes]

    def to_json(self) -> dict[str, Any]:
        """For funnel.json: reasons sorted by name."""
        return {
            "files": self.files,
            "changed": dict(sorted(self.changed.items())),
            "in": asdict(self.read),
            "kept": {**asdict(self.kept), "text_bytes": self.text_bytes},
            "dropped": {reason: asdict(tally) for reason, tally in sorted(self.dropped.items())},
            "quarantined": {reason: asdict(tally) for reason, tally in sorted(self.quarantined.items())},
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "SourceFunnel":
        """The inverse of `to_json`."""
        kept = data["kept"]
        return cls(
            Tally(kept["rows"], kept["bytes"]),
            {reason: Tally(**tally) for reason, tally in data["dropped"].items()},
            {reason: Tally(**tally) for reason, tally in data["quarantined"].items()},
            kept["text_bytes"],
            data["files"],
            data["changed"],
        )


@dataclass(slots=True)
class Funnel:
    """All sources of a prepared folder."""

    sources: dict[str, SourceFunnel] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    """Of labelled sets: name of a label -> kept texts, or words, with it; in the order of their numbers."""

    def total(self) -> SourceFunnel:
        """The sum over the sources."""
        total = SourceFunnel()
        for source in self.sources.values():
            total.files += source.files
            total.text_bytes += source.text_bytes
            total.count_changes(source.changed)
            total.kept.add(source.kept.rows, source.kept.bytes)
            for reason, tally in source.dropped.items():
                total.dropped[reason].add(tally.rows, tally.bytes)
            for reason, tally in source.quarantined.items():
                total.quarantined[reason].add(tally.rows, tally.bytes)
        return total

    def to_json(self) -> dict[str, Any]:
        """For funnel.json and `--json`."""
        sources = {name: source.to_json() for name, source in self.sources.items()}
        labels = {"labels": self.labels} if self.labels else {}
        return {"total": self.total().to_json(), "sources": sources, **labels}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Funnel":
        """The inverse of `to_json`."""
        sources = {name: SourceFunnel.from_json(source) for name, source in data["sources"].items()}
        return cls(sources, data.get("labels", {}))
