"""StackExchange dumps: a question with its best answers, joined on disk."""

import gzip
from typing import Any
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hornbook.text.ingest.document import Document, Rejected
from hornbook.text.ingest.formats.dumps.markup import plain_html


def post(number: int, kind: int, body: str, **more: Any) -> str:
    fields = {"Id": number, "PostTypeId": kind, "Body": body, "CreationDate": "2020-01-02", **more}
    return f"  <row {' '.join(f'{name}={quoteattr(str(value))}' for name, value in fields.items())} />\n"


def posts(*rows: str) -> bytes:
    return ('\ufeff<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "".join(rows) + "</posts>").encode()


QUESTION = post(
    4, 1, "<p>How do I <b>sort</b>?</p>", Title="Sorting", AcceptedAnswerId=9, ContentLicense="CC BY-SA 4.0"
)


def test_the_accepted_answer_comes_first_then_the_best(read_bytes: Any):
    answers = [
        post(n, 2, f"<p>a{n}</p>", ParentId=4, Score=score) for n, score in ((5, 3), (6, 8), (7, 0), (8, 1), (9, -2))
    ]
    (row,) = read_bytes("math.stackexchange.com/Posts.xml", posts(QUESTION, *answers))
    assert isinstance(row, Document)
    assert row.text == "Sorting\n\nHow do I sort?\n\nAnswer:\na9\n\nAnswer:\na6\n\nAnswer:\na5"
    assert (row.id, row.metadata["licence"], row.metadata["date"]) == ("4", "CC BY-SA 4.0", "2020-01-02")
    assert row.metadata["url"] == "https://math.stackexchange.com/q/4"
    assert row.origin.endswith("Posts.xml:3")


def test_what_is_no_thread_is_counted(read_bytes: Any):
    rows = read_bytes(
        "Posts.xml",
        posts(
            post(1, 5, "a wiki"),
            post(2, 2, "lost", ParentId=77),
            post(3, 2, "bad", ParentId="x"),
            '  <row Id="4" PostTypeId="1" Body="cut\n',
            QUESTION,
        ),
    )
    reasons = [(row.line, row.kind, row.damaged) for row in rows if isinstance(row, Rejected)]
    assert reasons == [
        (3, "neither question nor answer", False),
        (5, "invalid post", True),
        (6, "invalid XML", True),
        (4, "answer without its question", False),
    ]
    assert sum(isinstance(row, Document) for row in rows) == 1


def rejected(rows: list[Document | Rejected]) -> list[tuple[int, str]]:
    return [(row.line, row.kind) for row in rows if isinstance(row, Rejected)]


def test_every_rejection_names_its_line(read_bytes: Any):
    """Whatever the reason: the line of the file is what a person looks for."""
    long = post(5, 1, "x" * 300, Title="Long")
    rows = read_bytes("Posts.xml", posts(QUESTION, "  no post\n", "  <tag/>\n", long, post(6, 3, "a wiki")), 260)
    assert rejected(rows) == [
        (4, "not a post"),
        (5, "not a post"),
        (6, "row longer than the limit"),
        (7, "neither question nor answer"),
    ]
    assert [row.origin.rpartition(":")[2] for row in rows if isinstance(row, Document)] == ["3"]


def test_a_thread_that_is_too_long_is_at_the_line_of_its_question(read_bytes: Any):
    answers = [post(n, 2, f"<p>{'word ' * 30}</p>", ParentId=4, Score=1) for n in (5, 6)]
    rows = read_bytes("Posts.xml", posts(post(3, 5, "a wiki"), *answers, QUESTION), 260)
    assert rejected(rows) == [(3, "neither question nor answer"), (6, "row longer than the limit")]


def test_damage_is_behind_the_last_line_that_was_read(read_bytes: Any):
    lines = [post(n, 1, f"<p>{n}</p>", Title=str(n)) for n in range(2000)]
    rows = read_bytes("Posts.xml.gz", gzip.compress(posts(*lines))[:-4000])
    read = [row for row in rows if isinstance(row, Document)]
    ((line, _),) = rejected(rows)
    assert 100 < len(read) < 2000
    assert line == 2 + len(read) + 1


def test_an_endless_row_is_passed_over(read_bytes: Any):
    rows = read_bytes("Posts.xml", posts(post(1, 1, "x" * 2**21), QUESTION))
    assert [row.kind for row in rows if isinstance(row, Rejected)] == ["row longer than the limit"]
    assert isinstance(rows[-1], Document)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("<p>a</p>\n<p>b &lt; c</p>", "a\n\nb < c"),
        ("<pre><code>x = 1\n  y</code></pre>", "x = 1\n  y"),
        ("<ul><li>a</li><li>b</li></ul>", "- a\n- b"),
        ("a<br>b <a href='x'>c</a>", "a\nb c"),
        ("a < b and c > d", "a < b and c > d"),
        ("<" * 5000, "<" * 5000),
    ],
)
def test_simple_html_becomes_text(html: str, text: str):
    assert plain_html(html) == text


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(-2, 2)), max_size=12))
def test_fuzz_questions_in_are_rows_out(read_bytes: Any, drawn: list[tuple[int, int, int]]):
    lines = [post(n, kind, "b", ParentId=parent, Score=score) for n, (kind, parent, score) in enumerate(drawn, 1)]
    rows = read_bytes("Posts.xml", posts(*lines))
    questions = {n for n, (kind, _, _) in enumerate(drawn, 1) if kind == 1}
    orphans = sum(kind == 2 and parent not in questions for kind, parent, _ in drawn)
    assert len(rows) == max(len(questions) + orphans + sum(kind > 2 for kind, _, _ in drawn), 1)


def test_rows_on_the_line_of_the_frame_are_rows(read_bytes: Any):
    row = '<row Id="1" PostTypeId="1" Title="q" Body="text" />'
    (found,) = read_bytes("Posts.xml", f'<?xml version="1.0"?><posts>{row}</posts>'.encode())
    assert found.text == "q\n\ntext"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('<raw Id="1" PostTypeId="1" Title="q" Body="text" />', "not a post: the element is 'raw', not 'row'"),
        ('<row Id="1" PostTypeId="2" ParentId="9" Body="text" />', "answer without its question"),
        ("lost text", "not a post: text outside of rows"),
        ("", "empty dump: it holds no page and no post"),
    ],
)
def test_no_file_is_without_a_row(read_bytes: Any, line: str, reason: str):
    (row,) = read_bytes("Posts.xml", f'<?xml version="1.0"?><posts>{line}</posts>'.encode())
    assert row.reason == reason
