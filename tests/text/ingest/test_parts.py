"""Parts of a large file: together the rows of the whole, each under the same name, however it is cut."""

import codecs
import gzip
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hornbook.errors import UsageError
from hornbook.text.config.text import SourceConfig, TextConfig
from hornbook.text.ingest import parts
from hornbook.text.ingest.document import Document, ReadOptions, Rejected
from hornbook.text.ingest.inputs import InputFile, list_inputs
from hornbook.text.ingest.parts import cut, numbered
from hornbook.text.ingest.readers import read_file
from hornbook.text.refinery.pipeline import plan
from hornbook.text.refinery.pipeline.prepare import prepare

Tree = Callable[[Path], dict[str, bytes]]

LINES = st.lists(
    st.one_of(
        st.sampled_from(
            [b"", b"", b"\r", b"broken", b"a\tb\tc", b'{"text": 5}', b"\xff\xfe", codecs.BOM_UTF8 + b'{"text": "b"}']
        ),
        st.integers(0, 60).map(lambda size: json.dumps({"text": "x" * size}).encode()),
        st.integers(0, 60).map(lambda size: b"x" * size + b"\ty"),
    ),
    max_size=30,
)


def listed(path: Path) -> InputFile:
    (file,) = list_inputs("s", SourceConfig(paths=[str(path)]))
    return file


def rows_of(file: InputFile, limit: int = 1024, columns: Sequence[str] = ()) -> list[Document | Rejected]:
    """All rows; of a run of blank lines a row each, since a run may be cut."""
    found: list[Document | Rejected] = []
    for row in read_file(file, ReadOptions(max_bytes=limit, columns=columns)):
        if isinstance(row, Rejected) and row.kind == "blank line":
            found += [replace(row, line=row.line + n, rows=1) for n in range(row.rows)]
        else:
            found.append(row)
    return found


def rows_of_parts(
    file: InputFile, size: int, work: Path, limit: int = 1024, columns: Sequence[str] = ()
) -> list[Document | Rejected]:
    """The same, part by part in any order."""
    found = {}
    pieces = cut(file, size)
    for piece in random.Random(size).sample(pieces, len(pieces)):
        found[piece.part] = rows_of(numbered(piece, work), limit, columns)
    return [row for part in sorted(found) for row in found[part]]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lines=LINES,
    ended=st.booleans(),
    mark=st.booleans(),
    ending=st.sampled_from(["jsonl", "tsv"]),
    size=st.integers(16, 200),
)
def test_parts_are_the_whole(tmp_path: Path, lines: list[bytes], ended: bool, mark: bool, ending: str, size: int):
    header = [b"text\tid"] if ending == "tsv" else []
    data = (codecs.BOM_UTF8 if mark else b"") + b"\n".join([*header, *lines]) + (b"\n" if ended else b"")
    path = tmp_path / f"{xxhash.xxh3_64_hexdigest(data)}.{ending}"
    path.write_bytes(data)
    assert rows_of_parts(listed(path), size, tmp_path, limit=40) == rows_of(listed(path), limit=40)


def test_a_table_without_a_header_loses_and_repeats_no_row(tmp_path: Path):
    path = tmp_path / "x.tsv"
    path.write_text("".join(f"{number}\ttext {number}\n" for number in range(30)))
    columns = ("id", "text")
    whole = rows_of(listed(path), columns=columns)
    assert [row.text for row in whole if isinstance(row, Document)] == [f"text {number}" for number in range(30)]
    assert rows_of_parts(listed(path), 60, tmp_path, columns=columns) == whole
    (row,) = rows_of(listed(path), columns=("id", "content"))
    assert isinstance(row, Rejected)
    assert row.kind == "missing text"


def test_lines_longer_than_many_parts_are_read_once(tmp_path: Path):
    rows = [{"text": "x" * size, "id": f"{size}"} for size in (5, 30_000, 3, 90_000, 1)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for size in (1000, 29_000, 60_000, 200_000):
        found = rows_of_parts(listed(path), size, tmp_path, limit=100_000)
        assert [row.origin for row in found if isinstance(row, Document)] == [f"{path}:{n}" for n in range(1, 6)]


def test_the_line_feeds_before_a_part_are_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "x" * number}) + "\n" for number in range(300)))
    counted = []
    real = parts._line_feeds
    monkeypatch.setattr(parts, "_line_feeds", lambda stream, size: counted.append(size) or real(stream, size))
    pieces = cut(listed(path), 1000)
    begins = [numbered(piece, tmp_path).line for piece in pieces]
    assert begins == sorted(begins)
    assert len(counted) == len(pieces) - 1
    assert sum(counted) < path.stat().st_size
    assert [numbered(piece, tmp_path).line for piece in reversed(pieces)] == begins[::-1]
    assert len(counted) == len(pieces) - 1


def test_what_cannot_be_cut_is_whole(tmp_path: Path):
    lines = "".join(json.dumps({"text": f"{number}"}) + "\n" for number in range(100))
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode(), 0))
    (tmp_path / "b.jsonl").write_bytes(lines.encode("utf-16"))
    (tmp_path / "c.csv").write_text('text\n"a\nb"\n' * 50)
    (tmp_path / "d.txt").write_text(lines)
    (tmp_path / "e.parquet").write_bytes(b"PAR1" * 100)
    (tmp_path / "f.jsonl").write_text(lines)
    counts = [len(cut(file, 100)) for file in list_inputs("s", SourceConfig(paths=[str(tmp_path)]))]
    assert counts[:5] == [1] * 5
    assert counts[5] == -(-len(lines) // 100)
    fsspec.filesystem("memory").pipe("/parts/f.jsonl", lines.encode())
    (remote,) = list_inputs("s", SourceConfig(paths=["memory://parts/f.jsonl"]))
    assert len(cut(remote, 100)) == 1


def test_row_groups_of_a_table_are_parts(tmp_path: Path):
    table = pa.table({"text": [f"text {number}" * (number % 7) if number % 11 else None for number in range(100)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=9)
    file = listed(tmp_path / "a.parquet")
    for size in (1, file.size // 5, file.size):
        assert rows_of_parts(file, size, tmp_path) == rows_of(file)
    assert len(cut(file, 1)) == 12
    data = bytearray((tmp_path / "a.parquet").read_bytes())
    place = pq.read_metadata(tmp_path / "a.parquet").row_group(5).column(0).data_page_offset
    data[place : place + 8] = b"\xff" * 8
    (tmp_path / "a.parquet").write_bytes(data)
    found = rows_of_parts(file, 1, tmp_path)
    assert found == rows_of(file)
    assert any(isinstance(row, Rejected) and (row.line, row.rows) == (46, 9) for row in found)


def test_what_is_wrong_with_a_whole_file_is_said_with_all_its_rows(tmp_path: Path):
    pq.write_table(pa.table({"body": ["x"] * 90}), tmp_path / "a.parquet", row_group_size=9)
    (tmp_path / "b.tsv").write_text("body\tid\n" + "x\ty\n" * 100)
    for name, count in (("a.parquet", 90), ("b.tsv", 100)):
        file = listed(tmp_path / name)
        assert len(cut(file, 100)) > 2
        for rows in (rows_of_parts(file, 100, tmp_path), rows_of(file)):
            assert {row.reason[:12] for row in rows if isinstance(row, Rejected)} == {"missing text"}
            assert sum(row.rows for row in rows if isinstance(row, Rejected)) == count
            assert sum(row.bytes for row in rows if isinstance(row, Rejected)) >= 400


def test_a_table_whose_cells_hold_line_ends_is_not_cut(tmp_path: Path):
    (tmp_path / "a.tsv").write_text("id\ttext\n" + '1\t"a line\nand ""another"""\n' * 100)
    file = listed(tmp_path / "a.tsv")
    assert len(cut(file, 100)) == 1
    assert [row.text for row in rows_of(file) if isinstance(row, Document)] == ['a line\nand "another"'] * 100


def test_a_part_of_a_file_that_went_away_is_a_row(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n' * 20)
    _, second, *_ = cut(listed(path), 100)
    path.unlink()
    (row,) = rows_of(numbered(second, tmp_path))
    assert isinstance(row, Rejected)
    assert row.reason == "cannot read: No such file or directory"


@pytest.fixture
def large(tmp_path: Path, make_texts: Callable[..., list[str]]) -> TextConfig:
    """One file of rows with two that are damaged, cut into parts of 2000 bytes."""
    lines = [json.dumps({"text": text}) for text in make_texts(60)]
    lines[30], lines[31], lines[55] = "broken", "", "{"
    (tmp_path / "a.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return TextConfig(sources={"s": SourceConfig(paths=[str(tmp_path / "a.jsonl")])}, shard_bytes=2000)


def test_a_large_file_is_many_tasks_and_its_receipts_are_those_of_one(
    tmp_path: Path, large: TextConfig, read_tree: Tree
):
    assert len(plan.plan(large, plan.list_all(large), tmp_path)) > 5
    one = large.model_copy(update={"shard_bytes": 10**9})
    whole, funnel = prepare(one, tmp_path / "whole"), prepare(large, tmp_path / "parts", workers=1)
    assert funnel == whole
    prepare(large, tmp_path / "workers", workers=3)
    assert read_tree(tmp_path / "workers") == read_tree(tmp_path / "parts")
    assert (tmp_path / "parts" / "quarantine.jsonl").read_bytes() == (
        tmp_path / "whole" / "quarantine.jsonl"
    ).read_bytes()
    lines = (tmp_path / "parts" / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["line"] for line in lines] == [31, 56]
    documents = [
        [
            row
            for path in sorted((tmp_path / name / "documents" / "s").iterdir())
            for row in pq.read_table(path).to_pylist()
        ]
        for name in ("parts", "whole")
    ]
    assert documents[0] == documents[1]


def test_the_receipt_of_a_large_file_is_of_all_its_bytes(tmp_path: Path, large: TextConfig):
    funnel = prepare(large, tmp_path / "data")
    path = tmp_path / "a.jsonl"
    (entry,) = json.loads((tmp_path / "data" / "manifest.json").read_text())["inputs"]
    assert (entry["path"], entry["size"]) == (str(path), path.stat().st_size)
    assert entry["digest"] == xxhash.xxh3_128_hexdigest(path.read_bytes())
    assert funnel.sources["s"].files == 1
    assert prepare(large, tmp_path / "data") == funnel
    path.write_bytes(path.read_bytes()[:-2] + b"x\n")
    with pytest.raises(UsageError, match="have changed since"):
        prepare(large, tmp_path / "data")
