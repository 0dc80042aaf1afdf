"""Web archives: which records are rows, how pages are decoded, and what happens at damage."""

import gzip
import zlib
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hornbook.text.ingest.document import Document, Rejected

HTML = "<article><p>The river rose in the night and took {} with it.</p></article>"
PAGE = HTML.format("caf\u00e9")


def record(kind: str, block: bytes, content: str = "text/plain", length: int | None = None, **more: str) -> bytes:
    headers = {
        "WARC-Type": kind,
        "WARC-Record-ID": f"<urn:uuid:{kind}>",
        "WARC-Date": "2024-05-18T01:58:10Z",
        "WARC-Target-URI": "https://a.b/c",
        "Content-Type": content,
        "Content-Length": str(len(block) if length is None else length),
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"WARC/1.0\r\n{lines}\r\n".encode() + block + b"\r\n\r\n"


def response(body: bytes, content: str = "text/html", status: str = "200 OK", **headers: str) -> bytes:
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content}\r\n{lines}\r\n".encode()
    return record("response", head + body, "application/http; msgtype=response")


def reasons(rows: list[Document | Rejected]) -> list[str]:
    return [row.reason if isinstance(row, Rejected) else "kept" for row in rows]


def test_conversions_are_text_and_keep_address_and_date(read_bytes: Any):
    info = record("warcinfo", b"software: x\r\n", "application/warc-fields")
    text = record("conversion", "h\u00e9llo\nworld".encode())
    (row,) = read_bytes("a.warc.wet.gz", gzip.compress(info) + gzip.compress(text))
    assert isinstance(row, Document)
    assert (row.text, row.id) == ("h\u00e9llo\nworld", "urn:uuid:conversion")
    assert row.metadata == {"url": "https://a.b/c", "date": "2024-05-18T01:58:10Z"}
    assert row.origin.endswith("a.warc.wet.gz:1")


@pytest.mark.parametrize(
    "data",
    [
        response(HTML.format("caf\u00e9").encode("latin-1"), "text/html; charset=ISO-8859-1"),
        response(gzip.compress(HTML.format("caf\u00e9").encode()), Content_Encoding="gzip"),
        response(zlib.compress(HTML.format("caf\u00e9").encode()), Content_Encoding="deflate"),
        response(zlib.compress(HTML.format("caf\u00e9").encode(), wbits=-15), Content_Encoding="deflate"),
        response(HTML.format("caf\u00e9").encode(), Content_Encoding="gzip"),
        response(b"5\r\n<arti\r\n5;x=y\r\ncle><\r\n0\r\n\r\n", Transfer_Encoding="chunked")
        + response(HTML.format("caf\u00e9").encode(), Transfer_Encoding="chunked"),
        record("resource", HTML.format("caf\u00e9").encode(), "text/html"),
        response(HTML.format("caf\u00e9").encode(), Content_Encoding="none"),
        response(HTML.format("caf\u00e9").encode("latin-1"), "text/html;\r\n\tcharset=ISO-8859-1"),
        response(HTML.format("caf\u00e9").encode(), "text/html; charset=x-nobody"),
        response(HTML.format("caf\u00e9").encode(), "text/html; charset=utf-8; charset=koi8-r"),
        record("response", f"HTTP/1.1 200 OK\nContent-Type: text/html\n\n{PAGE}".encode(), "application/http"),
        record("resource", PAGE.encode(), "text/html").replace(b"\r\n", b"\n") * 2,
        response(f"{len(PAGE.encode()):X} \r\n{PAGE}\r\n0\r\nA: b\r\n\r\n".encode(), Transfer_Encoding="chunked"),
        response("The river took caf\u00e9 with it".encode("utf-16-le"), "text/plain; charset=utf-16-le"),
    ],
)
def test_pages_are_decoded_as_their_headers_say(read_bytes: Any, data: bytes):
    rows = read_bytes("a.warc", data)
    assert isinstance(rows[-1], Document)
    assert "took caf\u00e9 with it" in rows[-1].text


@pytest.mark.parametrize("size", ["-6", "+6", "0x6", "1_0", "", "six", "\u0663", "6" * 30])
def test_what_is_no_size_of_a_chunk_does_not_move_back(read_bytes: Any, size: str):
    """A body that begins so is none of chunks; where chunks came before it is damaged. -6 went round for ever."""
    begins, later = f"{size}\r\n{PAGE}", f"3\r\n<p>\r\n{size}\r\n{PAGE}"
    whole, damaged = read_bytes(
        "a.warc",
        response(begins.encode(), Transfer_Encoding="chunked") + response(later.encode(), Transfer_Encoding="chunked"),
    )
    assert isinstance(whole, Document)
    assert "took caf\u00e9 with it" in whole.text
    assert damaged.reason == f"damaged chunks: no chunk begins or ends at byte 8 of {len(later.encode())} of the body"


def test_truncated_chunks_are_damage(read_bytes: Any):
    (row,) = read_bytes("a.warc", response(f"FFFF\r\n{PAGE}".encode(), Transfer_Encoding="chunked"))
    assert row.reason.startswith("damaged chunks: no chunk begins or ends at byte 0 of ")


@pytest.mark.parametrize(
    ("data", "reason", "damaged"),
    [
        (response(b"gone", status="404 Not Found"), "HTTP status: '404'", False),
        (response(b"\x89PNG", "image/png"), "not a page: 'image/png'", False),
        (response(b"x", Content_Encoding="br"), "content encoding: 'br' is not read", True),
        (response(b"\x1f\x8bx", Content_Encoding="gzip"), "damaged content encoding", True),
        (response(gzip.compress(b" " * 2**21), Content_Encoding="gzip"), "row longer than the limit", True),
        (record("response", b"no header", "application/http"), "not an HTTP response", True),
        (record("conversion", b"caf\xe9"), "invalid UTF-8: byte 3 is 0xe9", True),
        (record("conversion", b"x" * (2**20 + 1)), "row longer than the limit: 1048577 bytes", True),
        (response(b"x", "text/plain; charset=punycode"), "unknown charset: 'punycode'", True),
        (record("resource", b"log", WARC_Target_URI="metadata://gnu.org/wget.log"), "not a page: a record of", False),
        (record("conversion", b"short", length=50), "truncated record: 9 of 50 bytes", True),
    ],
)
def test_what_is_no_page_is_counted_with_its_reason(read_bytes: Any, data: bytes, reason: str, damaged: bool):
    (row,) = read_bytes("a.warc", data)
    assert isinstance(row, Rejected)
    assert row.reason.startswith(reason)
    assert (row.line, row.damaged) == (1, damaged)


def test_after_damage_the_next_record_is_found(read_bytes: Any):
    good = record("conversion", b"good")
    wrong = record("conversion", b"longer than it says", length=4)
    rows = read_bytes("a.warc", good + b"garbage\r\nmore\n" + good + wrong + good)
    found = reasons(rows)
    assert found.count("kept") == 3
    assert [reason.partition(":")[0] for reason in found if reason != "kept"] == [
        "not a WARC record",
        "a record is longer than it says",
    ]


def test_a_header_without_end_is_bounded(read_bytes: Any):
    (row,) = read_bytes("a.warc", b"WARC/1.0\r\n" + b"A: b\r\n" * 200_000)
    assert row.kind == "not a WARC record"
    assert row.bytes == 1_200_010


def test_a_truncated_archive_keeps_what_came_before(read_bytes: Any):
    first, second = (gzip.compress(record("conversion", letter * 300_000)) for letter in (b"a", b"b"))
    found = reasons(read_bytes("a.wet.gz", first + second[:-200]))
    assert found[0] == "kept"
    assert found[-1].startswith("damaged gzip")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.booleans(), st.text(max_size=30)), max_size=8), st.integers(0, 10**6), st.binary(max_size=4)
)
def test_fuzz_records_in_are_rows_out(read_bytes: Any, records: list[tuple[bool, str]], place: int, noise: bytes):
    parts = [record("conversion" if kept else "metadata", text.encode()) for kept, text in records]
    whole = b"".join(parts)
    texts = [row.text for row in read_bytes("a.warc", whole) if isinstance(row, Document)]
    assert texts == [text for kept, text in records if kept]
    cut = place % (len(whole) + 1)
    for row in read_bytes("a.warc", whole[:cut] + noise + whole[cut:]):
        assert isinstance(row, Document) or row.reason
