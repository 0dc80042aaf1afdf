"""MediaWiki dumps: which pages are documents, markup to text, damage page by page."""

import bz2
from typing import Any
from xml.sax.saxutils import escape

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hornbook.text.ingest.document import Document, Rejected
from hornbook.text.ingest.formats.dumps.markup import strip_markup

HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">
  <siteinfo>
    <base>https://de.wikipedia.org/wiki/Wikipedia:Hauptseite</base>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""


def page(title: str, text: str, space: int = 0, extra: str = "", number: int = 7) -> str:
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{space}</ns>\n    <id>{number}</id>\n{extra}"
        f"    <revision>\n      <id>9</id>\n      <timestamp>2024-01-02T03:04:05Z</timestamp>\n"
        f'      <text bytes="1" xml:space="preserve">{escape(text)}</text>\n    </revision>\n  </page>\n'
    )


def dump(*pages: str) -> bytes:
    return (HEAD + "".join(pages) + "</mediawiki>\n").encode()


def test_articles_are_documents_with_their_address(read_bytes: Any):
    data = dump(page("Tor & T\u00fcr", "Ein '''Tor'''.\n[[Datei:a.png|mini|Bild]][[Kategorie:Bau]]"))
    (row,) = read_bytes("dewiki.xml.bz2", bz2.compress(data[:200]) + bz2.compress(data[200:]))
    assert isinstance(row, Document)
    assert (row.text, row.id) == ("Tor & T\u00fcr\n\nEin Tor.", "7")
    assert row.metadata == {
        "title": "Tor & T\u00fcr",
        "date": "2024-01-02T03:04:05Z",
        "url": "https://de.wikipedia.org/wiki/Tor_%26_T%C3%BCr",
    }
    assert row.origin.endswith("dewiki.xml.bz2:10")


def test_redirects_and_other_namespaces_are_dropped_with_their_reason(read_bytes: Any):
    redirect = page("A", "#REDIRECT [[B]]", extra='    <redirect title="B" />\n')
    rows = read_bytes("w.xml", dump(redirect, page("Talk:A", "x", space=1), page("B", "b")))
    assert [row.reason for row in rows if isinstance(row, Rejected)] == ["redirect", "not an article: namespace '1'"]
    assert not any(row.damaged for row in rows if isinstance(row, Rejected))
    assert isinstance(rows[-1], Document)


def test_a_damaged_page_is_one_row_with_its_line(read_bytes: Any):
    broken = page("B", "b").replace("</title>", "</titel>")
    rows = read_bytes("w.xml", dump(page("A", "a"), broken, page("C", "c")))
    assert [type(row).__name__ for row in rows] == ["Document", "Rejected", "Document"]
    assert rows[1].reason.startswith("invalid XML")
    assert HEAD.count("\n") + 2 + page("A", "a").count("\n") - 1 == rows[1].line


def test_a_page_beyond_the_limit_is_passed_over(read_bytes: Any):
    rows = read_bytes("w.xml", dump(page("A", "x" * 3 * 2**20), page("B", "b")))
    assert (rows[0].kind, rows[0].bytes > 3 * 2**20) == ("row longer than the limit", True)
    assert isinstance(rows[1], Document)


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.9, 0.99])
def test_a_truncated_dump_is_flagged(read_bytes: Any, keep: float):
    data = dump(*(page(str(number), "text") for number in range(20)))
    rows = read_bytes("w.xml", data[: int(keep * len(data))])
    assert rows[-1].kind.startswith("truncated")
    assert all(isinstance(row, Document) for row in rows[:-1])


def test_other_xml_is_named(read_bytes: Any):
    assert read_bytes("w.xml", b"<html/>")[0].kind == "unknown XML"


def test_entities_of_a_document_type_are_not_expanded(read_bytes: Any):
    bomb = '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
    data = (bomb + HEAD + page("A", "x").replace(">x<", ">&b;<") + "</mediawiki>").encode()
    assert read_bytes("w.xml", data)[0].reason.startswith("invalid XML: undefined entity")


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("'''Bold''' and ''italic'' and '''''both'''''", "Bold and italic and both"),
        ("[[Paris]] is [[City|a city]] [[:Category:X]]", "Paris is a city Category:X"),
        ("a [http://x.y label two] b [https://z.y] c", "a label two b c"),
        ("a{{Infobox|b={{c|d}}|e=[[f|g]]}}z", "az"),
        ("{{lang|fr|mot}} {{convert|5|km|mi}} {{nowrap|a b}}", "mot 5 km a b"),
        ('x<ref name="a">cite [[b]] {{c}}</ref>y<ref name=a/>z', "xyz"),
        ("a<!-- hidden {{ [[ -->b", "ab"),
        ("{| class=x\n|-\n| a || b {{c|}}\n|}\nafter", "after"),
        ("{{a|{{b|}}}}c", "c"),
        ("== History ==\ntext\n=== Early ===\nmore", "History\n\ntext\n\nEarly\n\nmore"),
        ("* one\n** two\n# three\n: four\n; five", "- one\n- two\n- three\nfour\nfive"),
        ("a &amp; b&nbsp;c &lt;d&gt; &#233;", "a & b\u00a0c <d> \u00e9"),
        ("<nowiki>[[a]]</nowiki> <b>c</b><br/>d", "[[a]] c\nd"),
        ("<math>x^2</math>", "$x^2$"),
        ("[[File:a.jpg|thumb|A [[b|c]] {{d}}]]e", "e"),
        ("never {{closed and [[a|b]]", "never closed and b"),
        ("stray }} and ]] and |} stay", "stray }} and ]] and |} stay"),
        ("Anna (; {{IPA|x}} ) sang __NOTOC__", "Anna sang"),
        ("<code>main()</code> calls f( )", "main() calls f( )"),
        ("Anna ({{IPA|x}}) sang (<ref>y</ref>)", "Anna sang"),
        ("a\n<source lang=c>\n#if x\n  *p = f();\n== a ==\n</source>\nb", "a\n\n#if x\n  *p = f();\n== a ==\n\nb"),
        ("<SyntaxHighlight>\n\tif (a  &lt; b)\n\n\n\n  {{c}}\n</syntaxhighlight >", "\tif (a  &lt; b)\n\n\n\n  {{c}}"),
        ("<pre>\n  # a &lt;\n\n:b\n</pre>", "  # a <\n\n:b"),
        ("see <nowiki>* a  ()</nowiki> and <source inline>b()  c</source>", "see * a  () and b()  c"),
        ("{{box|<pre>\ngone\n</pre>}}kept", "kept"),
        ("<pre>never closed ()", "never closed ()"),
        ("&#" + "9" * 5000 + ";", "&#" + "9" * 5000 + ";"),
    ],
)
def test_markup_becomes_text(markup: str, text: str):
    assert strip_markup(markup) == text


MARKS = [
    "{{",
    "}}",
    "[[",
    "]]",
    "{|",
    "|}",
    "|",
    "\n",
    "'''",
    "<ref>",
    "</ref>",
    "<!--",
    "-->",
    "[http://a",
    "]",
    "<nowiki>",
]


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*MARKS, "word", " "]), max_size=40))
def test_fuzz_no_word_outside_of_marks_is_lost(parts: list[str]):
    text = strip_markup("before " + "".join(parts))
    assert text.startswith("before")
    assert strip_markup("word " * 20 + "}}".join(parts).replace("{", "").replace("<", "")).startswith("word word")


@pytest.mark.parametrize("mark", [*MARKS, "{{a|", "[[a|", "<ref ", "( ", "&", "==", "<nowiki>{{<ref>[["])
def test_a_run_of_marks_takes_linear_work(mark: str):
    """Work that grows with the square of the length would not end within the time limit of a test."""
    assert len(strip_markup(mark * 100_000)) <= len(mark) * 100_000


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from([0, 0, 1]), st.text(st.characters(codec="utf-8", min_codepoint=32)))))
def test_fuzz_pages_in_are_rows_out(read_bytes: Any, pages: list[tuple[int, str]]):
    rows = read_bytes("w.xml", dump(*(page("T", text, space) for space, text in pages)))
    kept = [row for row in rows if isinstance(row, Document)]
    assert len(rows) == max(len(pages), 1)  # a dump without pages is one row that says so
    assert len(kept) == sum(space == 0 for space, _ in pages)


def test_a_page_whose_tag_is_damaged_is_a_row(read_bytes: Any):
    lost = page("B", "b").replace("<page>", "<pag>").replace("</page>", "</pag>")
    rows = read_bytes("w.xml", dump(page("A", "a"), lost, page("C", "c")))
    assert [row.text if isinstance(row, Document) else row.kind for row in rows] == ["A\n\na", "not a page", "C\n\nc"]
    (row,) = read_bytes("w.xml", b"<mediawiki><pag><title>T</title></pag></mediawiki>")
    assert row.kind == "not a page"
    (row,) = read_bytes("w.xml", dump())
    assert (row.kind, row.damaged) == ("empty dump", False)
