"""A reader from outside the package, in one file: what holds for ours holds for it."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from hornbook.errors import UsageError
from hornbook.text.config.labels import ClassLabels
from hornbook.text.config.text import SourceConfig, TextConfig
from hornbook.text.ingest.document import Document, ReadOptions, Rejected
from hornbook.text.ingest.formats.archives import archives
from hornbook.text.ingest.inputs import list_inputs
from hornbook.text.ingest.readers import read_file
from hornbook.text.refinery.pipeline.folder import config_key
from hornbook.text.refinery.pipeline.prepare import prepare

CARDS = '''
"""Cards: records that begin with a line `# name`."""

from hornbook.text.ingest.document import reject
from hornbook.text.ingest.lines import read_lines


def read(file, stream, options):
    for line in read_lines(stream, options.max_bytes):
        name, _, text = line.data.decode().partition("\\t")
        if not text:
            yield reject(file, line.number, "a card without a text", line.data)
        else:
            yield {"text": text, "id": name, "license": "CC0"}
'''
Make = Callable[[str], str]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Writes a module; gives the import path of its `read`."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(code: str) -> str:
        name = f"reader_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text(code)
        return f"{name}:read"

    return write


def rows_of(path: Path, reader: str, **options: Any) -> list[Document | Rejected]:
    config = SourceConfig(paths=[str(path)], reader=reader)
    (file,) = list_inputs("s", config)
    return list(read_file(file, ReadOptions.of(config, **options)))


def test_a_format_of_ones_own_is_prepared_as_ours_are(tmp_path: Path, make: Make):
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "a.cards").write_text("one\tfirst text\nbroken\ntwo\tsecond text\n")
    (raw / "b.cards.gz").write_bytes(gzip.compress(b"three\tthird text\n"))
    source = SourceConfig(paths=[str(raw)], reader=make(CARDS), licence="unused")
    prepare(TextConfig(sources={"s": source}), tmp_path / "data", workers=2)
    table = pq.read_table(tmp_path / "data" / "documents" / "s" / "00000.parquet").to_pydict()
    assert table["text"] == ["first text", "second text", "third text"]
    assert table["id"] == ["one", "two", "three"]
    assert table["origin"] == [f"{raw}/a.cards:1", f"{raw}/a.cards:3", f"{raw}/b.cards.gz:1"]
    assert set(table["licence"]) == {"CC0"}
    (line,) = (tmp_path / "data" / "quarantine.jsonl").read_text().splitlines()
    row = json.loads(line)
    assert (row["file"], row["line"], row["reason"]) == (f"{raw}/a.cards", 2, "a card without a text")


def test_its_rows_are_bounded_and_checked(tmp_path: Path, make: Make):
    (tmp_path / "a").write_text("")
    reader = make("def read(*_):\n    yield from ({'text': text} for text in ('x' * 2000, '\\udc80', 'text'))\n")
    long, odd, kept = rows_of(tmp_path / "a", reader, max_bytes=1024)
    assert [getattr(row, "kind", "") for row in (long, odd)] == ["row longer than the limit", "lone surrogate"]
    assert isinstance(kept, Document)
    assert kept.text == "text"


def test_damage_and_bombs_end_in_a_row(tmp_path: Path, make: Make, monkeypatch: pytest.MonkeyPatch):
    reader = make(CARDS)
    data = gzip.compress(b"".join(b"%d\ttext\n" % number for number in range(100_000)))
    (tmp_path / "a.gz").write_bytes(data[: len(data) // 2])
    *before, last = rows_of(tmp_path / "a.gz", reader)
    assert len(before) > 10_000
    assert isinstance(last, Rejected)
    assert (last.line, last.reason) == (len(before) + 1, "damaged gzip: it ends early")
    monkeypatch.setattr(archives, "FREE", 2**16)
    monkeypatch.setattr(archives, "EXPANSION", 2)
    (tmp_path / "b.gz").write_bytes(data)
    last = rows_of(tmp_path / "b.gz", reader)[-1]
    assert isinstance(last, Rejected)
    assert last.kind == "archive bomb"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1 / 0", r"read failed after row 1 of .*a: ZeroDivisionError: division by zero"),
        ("yield 3", r"read gave int for row 2 of .*a: give a mapping of fields"),
    ],
)
def test_what_a_reader_does_wrong_names_reader_file_and_row(tmp_path: Path, make: Make, line: str, message: str):
    (tmp_path / "a").write_text("")
    reader = make(f"def read(*_):\n    yield {{'text': 'a'}}\n    {line}\n")
    with pytest.raises(UsageError, match=message):
        rows_of(tmp_path / "a", reader)
    with pytest.raises(UsageError, match="reader 'nowhere:read' cannot be imported"):
        rows_of(tmp_path / "a", "nowhere:read")


def test_other_code_is_another_corpus(make: Make):
    def key() -> str:
        return config_key(TextConfig(sources={"s": SourceConfig(paths=["a"], reader=make(code))}))

    code = CARDS
    before = key()
    code += "\n# changed\n"
    assert key() != before
    assert "reader" not in SourceConfig(paths=["a"]).model_dump()


def test_a_reader_is_refused_beside_what_would_decide_otherwise():
    with pytest.raises(ValidationError, match="a reader of your own decides what a file holds"):
        SourceConfig(paths=["a"], reader="a:b", layout="arxiv")
    with pytest.raises(ValidationError, match="has a text_field or a reader"):
        TextConfig(sources={"s": SourceConfig(paths=["a"], reader="a:b")}, labels=ClassLabels(labels=["no", "yes"]))
