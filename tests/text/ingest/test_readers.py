"""Readers: every format, every kind of damage, nothing lost and nothing invented."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest import readers
from hornbook.text.ingest.charsets import starts_wide
from hornbook.text.ingest.document import Document, Rejected
from hornbook.text.ingest.inputs import InputFile, list_inputs
from hornbook.text.ingest.readers import ReadOptions, read_file

Write = Callable[[Path, list[Any]], Path]


def rows_of(path: Path | str, **options: Any) -> list[Document | Rejected]:
    (file,) = list_inputs("s", SourceConfig(paths=[str(path)]))
    return list(read_file(file, ReadOptions(**options)))


def only(path: Path | str, **options: Any) -> Document | Rejected:
    (row,) = rows_of(path, **options)
    return row


def rejected(path: Path, **options: Any) -> Rejected:
    row = only(path, **options)
    assert isinstance(row, Rejected)
    return row


def texts(rows: list[Document | Rejected]) -> list[str]:
    return [row.text for row in rows if isinstance(row, Document)]


# --- plain text


@pytest.mark.parametrize("name", ["a.txt", "a.md", "a.py"])
def test_a_plain_file_is_one_document(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_bytes("été\r\nzwei\0".encode())
    assert only(path) == Document("été\r\nzwei\0", str(path), "s", {}, str(path))


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"])
def test_an_empty_file_is_one_empty_document(tmp_path: Path, data: bytes):
    (tmp_path / "a.txt").write_bytes(data)
    row = only(tmp_path / "a.txt")
    assert isinstance(row, Document)
    assert row.text == ""


def test_a_long_file_is_split_at_line_ends(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {number}\n" for number in range(500)))
    rows = rows_of(path, max_bytes=1024)
    assert "".join(texts(rows)) == path.read_text()
    assert [row.id for row in rows if isinstance(row, Document)] == [f"{path}#{number}" for number in range(len(rows))]
    assert all(text.endswith("\n") and len(text) <= 1024 for text in texts(rows))


def test_a_file_of_exactly_the_limit_is_one_document(tmp_path: Path):
    path = tmp_path / "a.txt"
    for size in (1023, 1024):
        path.write_text("x" * size)
        assert isinstance(only(path, max_bytes=1024), Document)
    path.write_text("x" * 1025)
    assert [len(text) for text in texts(rows_of(path, max_bytes=1024))] == [1024, 1]


def test_invalid_utf8_is_named_with_its_line(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nbad \xff byte\n")
    row = rejected(path)
    assert (row.path, row.line, row.kind, row.bytes) == (str(path), 2, "invalid UTF-8", 16)
    assert "byte 9 is 0xff" in row.reason
    assert row.excerpt.isascii()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
@pytest.mark.parametrize("text", ["", "h", "hello \U0001f600\n" * 70_000])
def test_a_byte_order_mark_names_the_encoding(tmp_path: Path, encoding: str, text: str):
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert texts(rows_of(tmp_path / "a.txt")) == [text]


def test_damaged_utf16_is_named(tmp_path: Path):
    (tmp_path / "a.txt").write_bytes(b"\xff\xfea\x00\x00\xd8b\x00")
    assert rejected(tmp_path / "a.txt").reason.startswith("invalid utf-16-le: near byte 4")


def test_only_the_damaged_piece_of_a_long_file_is_lost(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"a" * 1000 + b"\n" + b"\xff" * 1000 + b"\n" + b"b" * 1000)
    rows = rows_of(path, max_bytes=1024)
    assert [type(row).__name__ for row in rows] == ["Document", "Rejected", "Document"]


# --- JSON lines


def test_rows_with_and_without_names(tmp_path: Path, write_rows: Write):
    path = write_rows(
        tmp_path / "a.jsonl",
        [{"text": "x", "id": "one", "tag": [1]}, {"text": "y"}, {"text": "z", "id": 7}, {"text": "w", "id": None}],
    )
    rows = rows_of(path)
    assert [row.id for row in rows if isinstance(row, Document)] == ["one", f"{path}:2", "7", f"{path}:4"]
    assert rows[0] == Document("x", "one", "s", {"tag": [1]}, f"{path}:1")


def test_other_keys_can_hold_text_and_name(tmp_path: Path, write_rows: Write):
    path = write_rows(tmp_path / "a.jsonl", [{"body": "x", "key": "k", "id": "other"}])
    row = only(path, text_field="body", id_field="key")
    assert isinstance(row, Document)
    assert (row.text, row.id, row.metadata) == ("x", "k", {"id": "other"})


BAD_LINES = [
    (b'{"text": "x"', "invalid JSON"),
    (b"nonsense", "invalid JSON"),
    (b'{"text": "a\x00b"}', "invalid JSON"),
    (b'{"text": "\xff"}', "invalid UTF-8"),
    (b'{"text": "\\ud800"}', "lone surrogate"),
    (b'{"text": "x", "text": "y"}', "duplicate key"),
    (b'{"text": null}', "text is not a string"),
    (b'{"text": 5}', "text is not a string"),
    (b'{"text": ["x"]}', "text is not a string"),
    (b'{"body": "x"}', "missing text"),
    (b'["text"]', "not an object"),
    (b"null", "not an object"),
    (b'{"text": "x", "deep": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "invalid JSON"),
    (b'{"text": "' + b"x" * 300_000 + b'"}', "row longer than the limit"),
]


@pytest.mark.parametrize(("line", "kind"), BAD_LINES, ids=[f"{kind}-{n}" for n, (_, kind) in enumerate(BAD_LINES)])
def test_a_bad_row_is_named_and_the_others_are_read(tmp_path: Path, line: bytes, kind: str):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "before"}\n' + line + b'\n{"text": "after"}\n')
    first, bad, last = rows_of(path, max_bytes=250_000)
    assert texts([first, last]) == ["before", "after"]
    assert isinstance(bad, Rejected)
    assert (bad.path, bad.line, bad.kind, bad.bytes, bad.damaged) == (str(path), 2, kind, len(line), True)
    assert bad.excerpt.isascii()
    assert len(bad.excerpt) <= 320


def test_nesting_that_python_can_parse_is_read(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "x", "deep": ' + b"[" * 100 + b"]" * 100 + b"}\n")
    assert texts(rows_of(path)) == ["x"]


def test_the_last_line_may_lack_its_end_but_not_its_half(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "x"}\n{"text": "y"}')
    assert texts(rows_of(path)) == ["x", "y"]
    path.write_bytes(b'{"text": "x"}\n{"text": "hal')
    _, bad = rows_of(path)
    assert isinstance(bad, Rejected)
    assert (bad.line, bad.kind) == (2, "half-written last line")


def test_line_ends_and_byte_order_marks_of_other_systems(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "x"}\r\n{"text": "y"}\r\n')
    assert texts(rows_of(path)) == ["x", "y"]


def test_blank_lines_are_counted_but_are_no_damage(tmp_path: Path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\n\n{"text": "x"}\n  \t\n\n\n')
    rows = rows_of(path)
    blank = [row for row in rows if isinstance(row, Rejected)]
    assert texts(rows) == ["x"]
    assert {row.kind for row in blank} == {"blank line"}
    assert not any(row.damaged for row in blank)
    assert sum(row.rows for row in blank) == 5


def test_an_empty_file_of_rows_has_none(tmp_path: Path):
    (tmp_path / "a.jsonl").write_bytes(b"")
    assert rows_of(tmp_path / "a.jsonl") == []


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("zst", zstandard.ZstdCompressor().compress)])
def test_compressed_rows(tmp_path: Path, ending: str, pack: Callable[[bytes], bytes]):
    lines = [json.dumps({"text": f"row {number} {number * 7919 % 10007}"}).encode() + b"\n" for number in range(50_000)]
    path = tmp_path / f"a.jsonl.{ending}"
    path.write_bytes(pack(b"".join(lines[:20_000])) + pack(b"".join(lines[20_000:])))
    assert len(texts(rows_of(path))) == 50_000
    packed = path.read_bytes()
    path.write_bytes(packed[: len(packed) * 2 // 3])
    *good, bad = rows_of(path)
    assert len(good) > 10_000
    assert texts(good) == [json.loads(line)["text"] for line in lines[: len(good)]]
    assert isinstance(bad, Rejected)
    assert (bad.line, bad.damaged) == (len(good) + 1, True)
    assert bad.kind.startswith("damaged ")
    path.write_bytes(b'{"text": "not compressed"}\n')
    assert rejected(path).kind.startswith("damaged ")


def test_compressed_plain_text(tmp_path: Path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"hello"))
    assert texts(rows_of(path)) == ["hello"]


# --- parquet


def write_table(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_parquet_rows_with_names(tmp_path: Path):
    path = write_table(tmp_path / "a.parquet", {"id": ["a", None], "text": ["x", "y"], "n": [1, 2]})
    assert rows_of(path) == [Document("x", "a", "s", {}, f"{path}:1"), Document("y", f"{path}:2", "s", {}, f"{path}:2")]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
)
def test_every_type_of_text_column(tmp_path: Path, kind: pa.DataType):
    path = tmp_path / "a.parquet"
    pq.write_table(
        pa.table({"text": pa.array(["x", "été", "x"]).cast(pa.string())}).cast(pa.schema([("text", kind)])), path
    )
    assert texts(rows_of(path)) == ["x", "été", "x"]


def test_one_column_may_be_both_text_and_name(tmp_path: Path):
    path = write_table(tmp_path / "a.parquet", {"text": ["x", "y"]})
    assert texts(rows_of(path, id_field="text")) == ["x", "y"]


def test_bad_cells_are_rows_of_their_own(tmp_path: Path):
    path = write_table(tmp_path / "a.parquet", {"text": pa.array([b"x", None, b"\xff", b"y" * 2000], pa.binary())})
    rows = rows_of(path, max_bytes=1024)
    assert texts(rows) == ["x"]
    kinds = ["text is not a string", "invalid UTF-8", "row longer than the limit"]
    assert [(row.line, row.kind) for row in rows if isinstance(row, Rejected)] == list(
        zip((2, 3, 4), kinds, strict=True)
    )


def test_a_missing_or_wrong_column_counts_all_rows(tmp_path: Path):
    row = rejected(write_table(tmp_path / "a.parquet", {"body": ["x"] * 5, "n": [1] * 5}))
    assert (row.rows, row.kind) == (5, "missing text")
    assert "body, n" in row.reason
    row = rejected(write_table(tmp_path / "a.parquet", {"text": [1, 2, 3]}))
    assert (row.rows, row.kind) == (3, "text is not a string")


def test_a_file_that_is_no_parquet(tmp_path: Path):
    path = tmp_path / "a.parquet"
    for data in (b"", b"PAR1", b"text\n" * 100, b"PAR1" + b"\0" * 100 + b"PAR1"):
        path.write_bytes(data)
        row = rejected(path)
        assert (row.kind, row.rows, row.line) == ("damaged parquet", 1, 0)


def test_truncation_anywhere_in_a_parquet_file_is_noticed(tmp_path: Path):
    whole = write_table(tmp_path / "a.parquet", {"text": [f"row {n}" for n in range(100)]}).read_bytes()
    for length in range(0, len(whole), 97):
        (tmp_path / "a.parquet").write_bytes(whole[:length])
        assert rejected(tmp_path / "a.parquet").kind == "damaged parquet"


def test_a_damaged_row_group_counts_its_rows_and_the_others_are_read(tmp_path: Path):
    path = tmp_path / "a.parquet"
    rows = [f"row {number} " + "x" * 50 for number in range(400)]
    write_table(
        path, {"text": rows}, row_group_size=100, use_dictionary=False, compression="gzip", write_statistics=False
    )
    chunk = pq.ParquetFile(path).metadata.row_group(1).column(0)
    data = bytearray(path.read_bytes())
    begin = chunk.data_page_offset
    data[begin + 30 : begin + chunk.total_compressed_size] = b"\xff" * (chunk.total_compressed_size - 30)
    path.write_bytes(data)
    found = rows_of(path)
    assert texts(found) == rows[:100] + rows[200:]
    (bad,) = [row for row in found if isinstance(row, Rejected)]
    assert (bad.kind, bad.line, bad.rows) == ("damaged parquet", 101, 100)


# --- all formats


def test_a_file_that_goes_away_or_is_closed_to_us_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.txt"
    path.write_text("x")
    (file,) = list_inputs("s", SourceConfig(paths=[str(path)]))

    def refuse(_: InputFile) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(readers, "open_input", refuse)
        (row,) = read_file(file, ReadOptions())
    assert isinstance(row, Rejected)
    assert row.reason == "cannot read: Permission denied"
    path.unlink()
    (row,) = read_file(file, ReadOptions())
    assert isinstance(row, Rejected)
    assert "No such file" in row.reason


def test_reading_through_urls(tmp_path: Path, write_rows: Write):
    memory = fsspec.filesystem("memory")
    memory.pipe("/box/a.jsonl.gz", gzip.compress(b'{"text": "x"}\n'))
    try:
        assert texts(rows_of("memory://box/a.jsonl.gz")) == ["x"]
    finally:
        memory.rm("/box", recursive=True)
    write_rows(tmp_path / "b.jsonl", [{"text": "y"}])
    assert texts(rows_of(f"file://{tmp_path}/b.jsonl")) == ["y"]
    write_table(tmp_path / "c.parquet", {"text": ["z"]})
    assert texts(rows_of(f"file://{tmp_path}/c.parquet")) == ["z"]


ROWS = st.one_of(
    st.fixed_dictionaries({"text": st.text(max_size=30)}).map(lambda row: json.dumps(row).encode()),
    st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")),
    st.sampled_from([line for line, _ in BAD_LINES[:12]]),
    st.just(b""),
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ROWS, max_size=12), st.booleans(), st.sampled_from(["jsonl", "jsonl.gz", "jsonl.zst"]))
def test_fuzz_every_line_is_a_document_or_rejected(tmp_path: Path, lines: list[bytes], ended: bool, ending: str):
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    assume(not starts_wide(data))  # then the file is refused as a whole
    pack = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstandard.ZstdCompressor().compress}[ending]
    path = tmp_path / f"fuzz.{ending}"
    path.write_bytes(pack(data))
    rows = rows_of(path, max_bytes=1024)
    expected = data.removeprefix(b"\xef\xbb\xbf").count(b"\n") + bool(data and not data.endswith(b"\n"))
    if data != b"\xef\xbb\xbf":
        assert sum(row.rows if isinstance(row, Rejected) else 1 for row in rows) == expected
    for text in texts(rows):
        text.encode()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.sampled_from(["txt", "jsonl", "jsonl.gz", "jsonl.zst", "txt.gz", "parquet"]))
def test_fuzz_no_bytes_break_a_reader(tmp_path: Path, data: bytes, ending: str):
    path = tmp_path / f"fuzz.{ending}"
    path.write_bytes(data)
    for row in rows_of(path, max_bytes=1024):
        assert isinstance(row, Document | Rejected)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_fuzz_damaged_parquet_loses_no_row_uncounted(tmp_path: Path, data: st.DataObject):
    """A flipped byte may pass unseen where the format has no checksum, but rows are never lost in silence.

    Each example starts a process that decodes.
    """
    path = write_table(tmp_path / "f.parquet", {"text": [f"row {n}" for n in range(60)]}, row_group_size=20)
    content = bytearray(path.read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    rows = rows_of(path)
    whole_file = [row for row in rows if isinstance(row, Rejected) and row.line == 0]
    if not whole_file:
        assert sum(row.rows if isinstance(row, Rejected) else 1 for row in rows) == 60
