"""A compressed file that is a bomb: its rows up to the limit, and one that names the limit."""

import bz2
import lzma
from collections.abc import Callable
from typing import Any

import pytest
import zstandard

from hornbook.text.ingest import compressions


@pytest.mark.parametrize(
    ("ending", "pack"),
    [("xz", lzma.compress), ("zst", zstandard.ZstdCompressor().compress), ("bz2", bz2.compress)],
    ids=["xz", "zst", "bz2"],
)
def test_rows_before_the_limit_are_kept(
    read_bytes: Any, monkeypatch: pytest.MonkeyPatch, ending: str, pack: Callable[[bytes], bytes]
):
    monkeypatch.setattr(compressions, "FREE", 2**20)
    lines = b"".join(b'{"text": "line %d"}\n' % number for number in range(2000))
    rows = read_bytes(f"a.jsonl.{ending}", pack(lines + b" " * 2**26))
    assert [row.text for row in rows[:2000]] == [f"line {number}" for number in range(2000)]
    assert len(rows) == 2001
    assert " bomb: it expands to more than " in rows[-1].reason
    assert rows[-1].damaged
