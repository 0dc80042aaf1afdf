"""csv and tsv: cells with line ends, damaged rows, endless quotes."""

import csv
import io
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


def test_damaged_rows_are_named_and_the_rest_is_read(read_bytes: Any):
    rows = read_bytes("a.csv", b'text,n\na,1\nb\n\n\n"c"x,3\ncaf\xe9,4\n"d\ne\xff",5\nf,6\n"open,7\ng,8\n')
    assert outcomes(rows) == [
        (rows[0].id, "a"),
        (3, "wrong number of cells: 1, the header has 2"),
        (4, "blank line"),
        (6, "invalid csv: ',' expected after '\"'"),
        (7, "invalid UTF-8: byte 3 is 0xe9"),
        (8, "invalid UTF-8: byte 1 is 0xff (lines 8 to 9)"),
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


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r"), min_size=1), max_size=8))
def test_fuzz_what_the_csv_module_writes_is_read(read_bytes: Any, texts: list[str]):
    file = io.StringIO(newline="")
    csv.writer(file).writerows([["text", "n"], *([text, 1] for text in texts)])
    rows = read_bytes("a.csv", file.getvalue().encode())
    assert [row.text if isinstance(row, Document) else row.reason for row in rows] == texts
