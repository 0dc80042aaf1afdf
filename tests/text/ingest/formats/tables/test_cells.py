"""csv and tsv: cells with line ends, damaged rows, endless quotes."""

import csv
import gzip
import io
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hornbook.text.ingest.charsets import REMEDY
from hornbook.text.ingest.document import Document, Rejected


def outcomes(rows: list[Document | Rejected]) -> list[tuple[Any, str]]:
    return [(row.line, row.reason) if isinstance(row, Rejected) else (row.id, row.text) for row in rows]


def test_cells_may_hold_line_ends_and_quotes(read_bytes: Any):
    data = b'\xef\xbb\xbfid,text,license\r\nx,"one\n\n""two"", three",MIT\r\ny,plain "quote" inside,\r\n'
    rows = read_bytes("a.csv", data)
    assert outcomes(rows) == [("x", 'one\n\n"two", three'), ("y", 'plain "quote" inside')]
    assert [row.metadata.get("licence") for row in rows] == ["MIT", None]
    assert rows[1].origin.endswith("a.csv:5")


def test_tabs_divide_and_quotes_mean_nothing(read_bytes: Any):
    rows = read_bytes("a.tsv", b'body\tkey\n"open\tk1\nno end"\tk2', text_field="body", id_field="key")
    assert outcomes(rows) == [("k1", '"open'), ("k2", 'no end"')]


@pytest.mark.parametrize("options", [{}, {"quoting": csv.QUOTE_ALL}, {"quoting": csv.QUOTE_NONNUMERIC}])
@pytest.mark.parametrize(
    "texts",
    [
        ['He said "hi" to me', "plain", 'a "word" in the middle'],
        ["two\nlines", "plain\ttab", ""],
        ["plain " * 9, "more"],
        ['"', '""', "\n\n"],
    ],
)
@pytest.mark.parametrize("name", ["a.tsv", "a.tsv.gz"])
def test_a_quoted_tsv_is_read_as_it_was_written(read_bytes: Any, name: str, texts: list[str], options: dict[str, Any]):
    file = io.StringIO(newline="")
    csv.writer(file, delimiter="\t", **options).writerows([["id", "text"], *enumerate(texts)])
    data = file.getvalue().encode()
    rows = read_bytes(name, gzip.compress(data) if name.endswith("gz") else data)
    assert [row.text for row in rows if isinstance(row, Document)] == texts


@pytest.mark.parametrize(
    "data",
    [
        'text\tid\n"Hello"\t1\n"Bye" she said\t2\n',
        'text\tid\n"Hello" he said\t1\n6" tall\t2\n',
        'id\ttext\n1\t"Hello"\n',
    ],
)
def test_a_tsv_of_texts_in_quotes_keeps_them(read_bytes: Any, data: str):
    rows = read_bytes("a.tsv", data.encode())
    assert all(isinstance(row, Document) and f"{row.text}" in data and '"' in row.text for row in rows)


def test_quotes_are_seen_in_a_large_table(read_bytes: Any):
    text = 'a "word"\n' * 20
    row = "1\t" + '"' + text.replace('"', '""') + '"\n'
    rows = read_bytes("a.tsv", ("id\ttext\n" + row * 9000).encode())
    assert [row.text for row in rows if isinstance(row, Document)] == [text] * 9000


def test_damaged_rows_are_named_and_the_rest_is_read(read_bytes: Any):
    rows = read_bytes("a.csv", b'text,n\na,1\nb\n\n\n"c"x,3\ncaf\xe9,4\n"d\ne\xff",5\nf,6\n"open,7\ng,8\n')
    assert outcomes(rows) == [
        (rows[0].id, "a"),
        (3, "wrong number of cells: 1, the header has 2"),
        (4, "blank line"),
        (6, "invalid csv: ',' expected after '\"'"),
        (7, f"invalid UTF-8: byte 3 is 0xe9{REMEDY}"),
        (8, f"invalid UTF-8: byte 1 is 0xff{REMEDY} (lines 8 to 9)"),
        (rows[6].id, "f"),
        (11, "invalid csv: unexpected end of data (lines 11 to 12)"),
    ]
    assert rows[2].rows == 2


def test_a_row_beyond_the_limit_is_bounded(read_bytes: Any):
    rows = read_bytes("a.csv", b'text\n"' + b"word\n" * 2000 + b'"\nlast\n' + b"y" * 9000 + b"\nend\n", max_bytes=4096)
    assert rows[0].kind == "row longer than the limit"
    assert outcomes(rows)[-1][1] == "end"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a,b\n1,2\n", "missing text: no column 'text'"),
        (b"text,a,a\n1,2,3\n", "a column is named twice"),
        (b'"text\n', "invalid csv"),
    ],
)
def test_a_header_that_cannot_serve_is_named(read_bytes: Any, data: bytes, reason: str):
    (row,) = read_bytes("a.csv", data)
    assert row.reason.startswith(reason)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.csv.gz"])
def test_all_rows_of_a_table_without_text_are_counted(read_bytes: Any, name: str):
    data = b"a,b\n" + b'1,"two\nlines"\n\xe9,2\n' * 50
    data = data.replace(b",", b"\t") if "tsv" in name else data
    (row,) = read_bytes(name, gzip.compress(data) if name.endswith("gz") else data)
    assert (row.rows, row.bytes) == (100, len(data) - len(b"a,b\n"))
    assert row.reason == "missing text: no column 'text' (columns: 'a, b')"


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1), max_size=8))
def test_fuzz_what_the_csv_module_writes_is_read(read_bytes: Any, texts: list[str]):
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["text", "n"], *([text, 1] for text in texts)])
    rows = read_bytes("a.csv", file.getvalue().encode())
    assert [row.text if isinstance(row, Document) else row.reason for row in rows] == texts
