"""Rows that cannot be read are counted by reason, and the first is named."""

import json
from pathlib import Path

from hornbook.text.ingest.document import Document, Rejected
from hornbook.text.ingest.skipped import SkippedRows, skipped_notes


def test_damaged_rows_are_counted_and_empty_ones_are_not(tmp_path: Path):
    rows = [
        Document("kept", "1", "source"),
        Rejected("a.jsonl", 2, "no text: keys are [b]", "source"),
        Rejected("a.jsonl", 3, "blank", "source", damaged=False),
        Rejected("b.parquet", 0, "damaged file", "source", rows=5),
    ]
    skipped = SkippedRows()
    assert [document.text for document in skipped.documents(rows)] == ["kept"]
    counts = {"rows": 6, "reasons": {"damaged file": 5, "no text": 1}, "first": "a.jsonl:2: no text: keys are [b]"}
    assert skipped.to_json() == {"skipped": counts}
    (note,) = skipped_notes({"loss": 1.0, **skipped.to_json()})
    reasons = "damaged file (5), no text (1); the first: a.jsonl:2: no text: keys are \\[b]"
    assert note.endswith(f"rows that cannot be read, left out: 6: {reasons}")
    records = (
        {"file": each.path, "line": each.line, "reason": each.reason, "rows": each.rows}
        for each in rows[1::2]
        if isinstance(each, Rejected)
    )
    (tmp_path / "quarantine.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records))
    again = SkippedRows()
    again.read(tmp_path / "quarantine.jsonl")
    assert again.to_json() == skipped.to_json()


def test_nothing_is_said_where_no_row_is_skipped():
    assert (SkippedRows().to_json(), SkippedRows().notes) == ({}, [])
