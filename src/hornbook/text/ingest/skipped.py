"""Rows that cannot be read: what reads text only to score or to count it leaves them out, and must say so."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape

from hornbook.text.ingest.document import Document, Row


class SkippedRows:
    """Counts of damaged rows by reason, and the place of the first one."""

    def __init__(self) -> None:
        """No rows."""
        self.reasons: Counter[str] = Counter()
        self.first = ""
        """FILE:LINE: REASON."""

    def add(self, file: str, line: int, reason: str, rows: int = 1) -> None:
        """Count a damaged row, or several with one reason."""
        self.reasons[reason.partition(":")[0]] += rows
        self.first = self.first or f"{file}:{line}: {reason}"

    def documents(self, rows: Iterable[Row]) -> Iterator[Document]:
        """The documents among rows; damaged rows are counted, empty ones passed over."""
        for row in rows:
            if isinstance(row, Document):
                yield row
            elif row.damaged:
                self.add(row.path, row.line, row.reason, row.rows)

    def read(self, quarantine: Path) -> None:
        """Count the rows of the quarantine.jsonl of a prepared folder."""
        for line in quarantine.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            self.add(row["file"], row["line"], row["reason"], row["rows"])

    def to_json(self) -> dict[str, Any]:
        """`{"skipped": {...}}`, or nothing where no row was skipped."""
        reasons = dict(sorted(self.reasons.items()))
        return {"skipped": {"rows": self.reasons.total(), "reasons": reasons, "first": self.first}} if reasons else {}

    @property
    def notes(self) -> list[str]:
        """A line for people in rich's markup, where rows were skipped."""
        return skipped_notes(self.to_json())


def skipped_notes(value: Mapping[str, Any]) -> list[str]:
    """The line for people about `SkippedRows.to_json()`, which may be a part of a larger object."""
    if not (skipped := value.get("skipped")):
        return []
    reasons = ", ".join(f"{reason} ({count:,})" for reason, count in skipped["reasons"].items())
    text = f"rows that cannot be read, left out: {skipped['rows']:,}: {reasons}; the first: {skipped['first']}"
    return [f"[yellow]![/] {escape(text)}"]
