"""The funnel: rows in = kept + dropped + quarantined, exactly, by source and reason."""

from collections.abc import Iterator
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

    read: Tally = field(default_factory=Tally)
    kept: Tally = field(default_factory=Tally)
    dropped: dict[str, Tally] = field(default_factory=dict)
    quarantined: dict[str, Tally] = field(default_factory=dict)
    text_bytes: int = 0
    """UTF-8 bytes of the kept text after the edits."""
    files: int = 0
    changed: dict[str, list[int]] = field(default_factory=dict)
    """Changes by edits and cuts in kept documents: counter -> [documents, changes] (of `cut`: bytes)."""

    def keep(self, rows: int, size: int, text_bytes: int) -> None:
        """Count kept rows."""
        self.read.add(rows, size)
        self.kept.add(rows, size)
        self.text_bytes += text_bytes

    def drop(self, reason: str, rows: int, size: int) -> None:
        """Count dropped rows."""
        self.read.add(rows, size)
        self.dropped.setdefault(reason, Tally()).add(rows, size)

    def quarantine(self, reason: str, rows: int, size: int) -> None:
        """Count rows that could not be read."""
        self.read.add(rows, size)
        self.quarantined.setdefault(reason, Tally()).add(rows, size)

    def count_changes(self, changed: dict[str, list[int]]) -> None:
        """Add the changes by edits and cuts; counters without changes are left out."""
        for name, (documents, changes) in changed.items():
            if documents:
                before = self.changed.get(name, [0, 0])
                self.changed[name] = [before[0] + documents, before[1] + changes]

    def balanced(self) -> bool:
        """Whether rows and bytes add up."""
        parts = [self.kept, *self.dropped.values(), *self.quarantined.values()]
        return (self.read.rows, self.read.bytes) == (sum(p.rows for p in parts), sum(p.bytes for p in parts))

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
            Tally(**data["in"]),
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
            total.count_changes(source.changed)
            total.keep(source.kept.rows, source.kept.bytes, source.text_bytes)
            for reason, tally in source.dropped.items():
                total.drop(reason, tally.rows, tally.bytes)
            for reason, tally in source.quarantined.items():
                total.quarantine(reason, tally.rows, tally.bytes)
        return total

    def lines(self) -> Iterator[tuple[str, str, str, Tally]]:
        """(source, outcome, reason, tally) in reading order, for tables."""
        for name, source in self.sources.items():
            yield name, "in", "", source.read
            for outcome, table in (("quarantined", source.quarantined), ("dropped", source.dropped)):
                for reason in sorted(table):
                    yield name, outcome, reason, table[reason]
            yield name, "kept", "", source.kept

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
