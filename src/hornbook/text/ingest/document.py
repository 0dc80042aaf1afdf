"""What readers yield: documents, and rows that are none."""

from dataclasses import dataclass, field
from typing import Any

from hornbook.text.ingest.labels.labelling import Labelling

EXCERPT_BYTES = 160


@dataclass(frozen=True, slots=True)
class Document:
    """One text with its name and where it came from."""

    text: str
    id: str
    """The row's own name; where it has none, its origin."""
    source: str
    metadata: dict[str, Any] = field(default_factory=dict)
    """The row's other keys (JSON lines)."""
    origin: str = ""
    """Path and row: `path` or `path#part` for plain text, `path:row` (counted from 1) for rows."""
    labels: Labelling | None = None


@dataclass(frozen=True, slots=True)
class Rejected:
    """A row (or, where `rows` is more than 1, a stretch of rows) that is not a document."""

    path: str
    line: int
    """Line or row in the file, counted from 1; 0 where the whole file is meant."""
    reason: str
    source: str
    excerpt: str = ""
    """The first bytes of the row, for people."""
    bytes: int = 0
    """Length of the row as read, where it is known."""
    rows: int = 1
    damaged: bool = True
    """False for rows that are empty by nature (blank lines): those are dropped, not quarantined."""

    @property
    def kind(self) -> str:
        """The reason without its particulars: what the funnel counts."""
        return self.reason.partition(":")[0]


def excerpt(data: bytes) -> str:
    """The beginning of a row as printable ASCII."""
    head = data[:EXCERPT_BYTES].decode("utf-8", "backslashreplace")
    return head.encode("unicode_escape").decode("ascii")[: 2 * EXCERPT_BYTES]
