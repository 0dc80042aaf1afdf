"""Web pages: main content, declared encodings, pages that cost too much."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hornbook.text.ingest.document import Document, Rejected
from hornbook.text.ingest.formats.web import html
from hornbook.text.ingest.formats.web.tags import read_tags

ARTICLE = "<article><h1>On walls</h1><p>A wall of stone stands longer than {} of clay, they say.</p></article>"


def page(inside: str, head: str = "") -> str:
    return f"<html><head>{head}</head><body><nav><a href=/>Home</a></nav>{inside}<footer>(c) us</footer></body></html>"


def test_the_main_content_is_kept_and_says_where_it_is_from(read_bytes: Any):
    head = '<link rel=canonical href="https://a.b/c"><link rel="license" href="https://cc.org/by/4.0/">'
    (row,) = read_bytes("a.html", page(ARTICLE.format("one"), head).encode())
    assert isinstance(row, Document)
    assert row.text == "On walls\n\nA wall of stone stands longer than one of clay, they say."
    assert row.metadata == {"url": "https://a.b/c", "licence": "https://cc.org/by/4.0/"}


@pytest.mark.parametrize(
    "before",
    [
        "<h1>On\n walls</h1>",
        "<title>On walls</title><h1>On walls</h1>",
        "<div><table><tr><th>On walls</th></tr><tr><td><img> </td></tr></table></div><h1>On walls</h1>",
        "<div><h2>On walls</h2></div><h1>On walls</h1>",
        "<h1>On walls</h1><svg><title>a wall</title><path d=1></svg>",
    ],
)
def test_a_title_is_kept_once(read_bytes: Any, before: str):
    words = "A wall of stone stands longer than one of clay, they say."
    (row,) = read_bytes("a.html", f"<title>On walls</title><body>{before}<p>{words}</p><p>On walls</p>".encode())
    assert row.text.split("\n\n") == ["On walls", words, "On walls"]


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [
        ('<meta charset="iso-8859-1">', "latin-1"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=Shift_JIS">', "shift_jis"),
        ("<meta charset=windows-1251>", "cp1251"),
        ("", "utf-8"),
        ("", "utf-8-sig"),
        ("", "utf-16"),
    ],
)
def test_a_page_is_decoded_as_it_declares(read_bytes: Any, declared: str, encoding: str):
    word = {"shift_jis": "\u65e5\u672c", "cp1251": "\u0441\u0442\u0435\u043d\u0430"}.get(encoding, "caf\u00e9")
    (row,) = read_bytes("a.htm", page(ARTICLE.format(word), declared).encode(encoding))
    assert isinstance(row, Document)
    assert f"longer than {word} of clay" in row.text


def test_bytes_that_windows_1252_leaves_open_are_no_damage(read_bytes: Any):
    (row,) = read_bytes("a.html", page(ARTICLE.format("x\u0081y"), "<meta charset=latin1>").encode("latin-1"))
    assert isinstance(row, Document)


def test_a_wrong_encoding_is_named_with_its_byte(read_bytes: Any):
    (row,) = read_bytes("a.html", b"<p>caf\xe9 au lait")
    assert isinstance(row, Rejected)
    assert row.reason.startswith("invalid UTF-8: byte 6 is 0xe9; for another encoding: --encoding NAME")


@pytest.mark.parametrize(
    ("opened", "good"), [(html.MOST_NESTED, True), (html.MOST_NESTED + 1, False), (100_000, False)]
)
def test_deep_pages_are_refused_before_they_cost_time(read_bytes: Any, opened: int, good: bool):
    (row,) = read_bytes("a.html", b"<div>" * opened + b"text")
    assert isinstance(row, Document) is good
    assert good or row.reason.startswith("costly page: nested too deep")


@pytest.mark.parametrize("tag", ["td", "input", "source", "g"])
def test_in_drawings_nothing_is_closed_by_others(read_bytes: Any, tag: str):
    (row,) = read_bytes("a.html", (f"<svg><{tag}>" + f"<{tag}>" * 20_000).encode())
    assert row.reason.startswith("costly page: nested too deep")
    (row,) = read_bytes("a.html", ("<svg>" + f"<{tag} x=1 />" * 20_000 + "</svg>text").encode())
    assert isinstance(row, Document)


@pytest.mark.parametrize(
    ("page_", "reason"),
    [
        ("<p>" + "".join(f"<b a{number}>" for number in range(200)) + "<p>x" * 20_000, "formatting is never closed"),
        ("<select>" + "<option>x" * 20_000, "more than 5000 options"),
    ],
)
def test_pages_that_would_cost_the_square_are_refused(read_bytes: Any, page_: str, reason: str):
    """Without the refusal they would not end within the time limit of a test."""
    (row,) = read_bytes("a.html", page_.encode())
    assert row.reason.startswith(f"costly page: {reason}")


@pytest.mark.parametrize("tag", ["p", "li", "td", "br", "img src=x"])
def test_elements_that_others_close_do_not_count_as_nested(read_bytes: Any, tag: str):
    (row,) = read_bytes("a.html", (f"<{tag}>word " * 2000).encode())
    assert isinstance(row, Document)


def test_a_page_beyond_the_limit_is_not_read(read_bytes: Any):
    (row,) = read_bytes("a.html", b"<p>" + b"x" * 5000, max_bytes=4096)
    assert (row.kind, row.bytes) == ("row longer than the limit", 5003)


SCRIPTS = "for(i=0;i<n;i++){" + "".join(f"v{n} = w{n} < {n};" for n in range(400)) + "}"
DEEP = "<w:x>" * 400


@pytest.mark.parametrize(
    "inside",
    [
        f"<script>{SCRIPTS}</script>",
        f"<script><!--<script>{DEEP}</script>{DEEP}--></script>",
        f"<style>{DEEP}</style>",
        f"<title>{DEEP}</title>",
        f"<textarea>{DEEP}</TEXTAREA >",
        f"<iframe>{DEEP}</iframe>",
        f"<!--[if mso]>{DEEP}<![endif]-->",
        f"<!-- a --!><!--><!---><!--{DEEP}-->",
        "<!x " + "<w" * 400 + ">",
        f"<svg><title>an icon</title><style>.a{{}}</style><path d=1></svg><script>{DEEP}</script>",
        f"<svg><path><p>left the drawing</p><script>{DEEP}</script>",
        f'<a title="{DEEP}">x</a>',
    ],
)
def test_there_are_no_tags_in_text(read_bytes: Any, inside: str):
    (row,) = read_bytes("a.html", page(ARTICLE.format("one") + inside).encode())
    assert isinstance(row, Document), row.reason


@pytest.mark.parametrize(
    "inside",
    [
        f"<svg><style>{DEEP}",
        f"<select><style>{DEEP}",
        f"<!-->{DEEP}",
        f"<script><!--<script></script><style></script>{DEEP}",
        f"<svg><title><p></title></svg></p></title><style>{DEEP}",
        f"</title><style><!--</style>{DEEP}",
    ],
)
def test_no_disguise_hides_tags_from_the_count(read_bytes: Any, inside: str):
    (row,) = read_bytes("a.html", inside.encode())
    assert row.reason.startswith("costly page: nested too deep")


MARKS = "<svg> </svg> <math> </math> <title> </title> <desc> </desc> <style> </style> <script> </script> <select> "
MARKS += '</select> <p> </p> <!-- --> <!--> --!> <xmp> </xmp> <table> <td> </table> <mi> </mi> <a" <![CDATA[ ]]> <svg/>'


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(st.none(), st.sampled_from(MARKS.split())), max_size=14))
def test_fuzz_no_element_is_missed(marks: list[str | None]):
    """Each None is an element of a name of its own: what the parser makes of the page has been seen as a tag."""
    from resiliparse.parse.html import HTMLTree

    source = "".join(mark or f"<x{number}>" for number, mark in enumerate(marks))
    tree = HTMLTree.parse(source)
    names = {node.tag for node in tree.document.query_selector_all("*")} if tree.document else set()
    own = {f"x{number}" for number, mark in enumerate(marks) if mark is None}
    assert names & own <= {tag.name for tag in read_tags(source)}


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([b"<p>", b"<", b"&#x", b"\xff", b"<meta charset=utf-16>", b"a", b"]]>", b"<!--", b"\0"]))
)
def test_fuzz_a_page_is_one_row(read_bytes: Any, parts: list[bytes]):
    (row,) = read_bytes("a.html", b"".join(parts))
    assert isinstance(row, Rejected) or row.text.encode() is not None
