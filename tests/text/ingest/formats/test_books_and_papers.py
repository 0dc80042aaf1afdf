"""The layouts of Project Gutenberg and of arXiv, and LaTeX as text."""

import gzip
import io
import tarfile
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hornbook.text.ingest.document import Document, Rejected
from hornbook.text.ingest.formats.latex.markup import strip_latex

BOOK = """The Project Gutenberg EBook of Walls, by A. Mason

Title: Walls
Author: A. Mason
Release Date: May 1, 2008 [EBook #1234]
Language: French
Character set encoding: {charset}

*** START OF THIS PROJECT GUTENBERG EBOOK WALLS ***

Le caf\u00e9 du mur.

*** END OF THIS PROJECT GUTENBERG EBOOK WALLS ***
Licence text that nobody should learn.
"""


@pytest.mark.parametrize(("charset", "encoding"), [("ISO-8859-1", "latin-1"), ("UTF-8", "utf-8"), ("ASCII", "utf-8")])
def test_a_book_is_what_stands_between_the_licences(read_bytes: Any, charset: str, encoding: str):
    data = BOOK.format(charset=charset).replace("\n", "\r\n").encode(encoding)
    (row,) = read_bytes("1234.txt", data, layout="gutenberg")
    assert isinstance(row, Document)
    assert row.text == "Le caf\u00e9 du mur."
    assert row.metadata == {
        "title": "Walls",
        "author": "A. Mason",
        "language": "French",
        "date": "May 1, 2008",
        "url": "https://www.gutenberg.org/ebooks/1234",
    }


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"No header at all.", "no Gutenberg header"),
        (BOOK.format(charset="klingon").encode(), "unknown charset: 'klingon'"),
        (BOOK.format(charset="UTF-8").encode("latin-1"), "invalid utf-8: byte"),
        (BOOK.format(charset="UTF-8").encode() + b"x" * 2**20, "row longer than the limit"),
    ],
)
def test_a_book_whose_licence_cannot_be_cut_is_quarantined(read_bytes: Any, data: bytes, reason: str):
    (row,) = read_bytes("a.txt", data, layout="gutenberg")
    assert isinstance(row, Rejected)
    assert row.reason.startswith(reason)


@pytest.mark.parametrize(
    ("latex", "text"),
    [
        ("a % comment\nb \\% c", "a\nb % c"),
        ("% whole line\na", "a"),
        (
            "\\documentclass{x}\n\\title{On \\emph{it}}\n\\begin{document}\nBody\n\\end{document}\nafter",
            "On it\n\nBody",
        ),
        ("\\section{One}\\label{a}\ntext~\\cite[p.~3]{b} and \\textbf{bold \\textit{x}}", "One\n\ntext and bold x"),
        ("$a<b$, $$x_1$$, \\(y\\) \\[ z \\]", "$a<b$, $$x_1$$, \\(y\\) \\[ z \\]"),
        ("\\begin{equation}\nE=mc^2\n\\end{equation}", "\\begin{equation}\nE=mc^2\n\\end{equation}"),
        ("a\\begin{figure}[h]\\includegraphics{x}\\caption{c}\\end{figure}b", "ab"),
        ("\\newcommand{\\R}{\\mathbb{R}}in $\\R^n$", "in $\\mathbb{R}^n$"),
        ("\\begin{itemize}\\item one \\item two\\end{itemize}", "- one\n- two"),
        ("K\\\"orper \\'{e} \\c{c}a", "Ko\u0308rper e\u0301 c\u0327a"),
        ("one\\\\[2pt]two \\& three", "one\ntwo & three"),
        ("kept \\bibliography{refs} gone", "kept"),
        ("cost \\$5 and {open", "cost $5 and open"),
        ('na\\"{\\i}ve na\\"\\i ve {\\\'\\i}', "nai\u0308ve nai\u0308ve i\u0301"),
        (
            "\\L\\'{o}d\\'z, Erd\\H{o}s, \\H os, \\k{a} \\r{a} \\d s \\u{g}",
            "\u0141o\u0301dz\u0301, Erdo\u030bs, o\u030bs, a\u0328 a\u030a s\u0323 g\u0306",
        ),
        (
            "\\AE{}on \\oe uvre \\OE \\aa\\AA \\O{} \\i{} \\dh\\th\\dj\\ng \\SS",
            "\u00c6on \u0153uvre \u0152\u00e5\u00c5\u00d8 \u0131 \u00f0\u00fe\u0111\u014b\u1e9e",
        ),
        ("\\section{Caf\\'e}text \\textdegree{} \\textbackslash{} \\copyright", "Cafe\u0301\ntext \u00b0 \\ \u00a9"),
        ("a \\verb|x%y| b \\verb*+{%}+ c % gone", "a x%y b {%} c"),
        ("\\=a \\.z \\b{d} \\t{oo}", "a\u0304 z\u0307 d\u0331 o\u0361o"),
        ("see \\url{http://a.b/c%20d#e_f} % gone", "see http://a.b/c%20d#e_f"),
        ("the \\href{http://a.b/c%20d}{label} here", "the label here"),
        (
            "a\n\\begin{verbatim}\n  x = 1  % kept\n\n\n  \\y{}\n\\end{verbatim}\nb",
            "a\n\n  x = 1  % kept\n\n\n  \\y{}\n\nb",
        ),
        ("\\begin{lstlisting}[language=C]\n#if 1 % 2\n\\end{lstlisting}", "#if 1 % 2"),
        ("\\begin{minted}{python}\nf(a  % b)\n\\end{minted}", "f(a  % b)"),
        ("a \\iffalse not shown \\fi b \\iffalse never closed", "a b never closed"),
        ("\\begin{comment}\n% hidden\n\\end{comment}shown", "shown"),
        ("\\verbose|a% gone\n| \\\\% gone\n\\\\\\% kept", "|a\n|\n\n% kept"),
    ],
)
def test_latex_becomes_text(latex: str, text: str):
    assert strip_latex(latex) == text


MARKS = [
    "{",
    "}",
    "[",
    "]",
    "$",
    "\\$",
    "%",
    "\\begin{figure}",
    "\\end{figure}",
    "\\cite{",
    "\\a",
    "\\[",
    "\\\\",
    "\\section{",
    "\\begin{verbatim}",
    "\\verb|",
    "\\url{",
    "\\iffalse",
    "\\'{",
    "\\H ",
]


@pytest.mark.parametrize("mark", [*MARKS, "\\newcommand{\\a}{\\a\\a}\\a", "\\begin{equation}", "{[", "$\\$"])
def test_a_run_of_marks_takes_linear_work(mark: str):
    """Work that grows with the square of the length would not end within the time limit of a test."""
    assert len(strip_latex(mark * 50_000)) <= 4 * len(mark) * 50_000


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from([*MARKS, "word", " ", "\n"]), max_size=30))
def test_fuzz_latex_never_fails(parts: list[str]):
    assert "before" in strip_latex("before " + "".join(parts))


PAPER = b"\\documentclass{article}\n\\begin{document}\nMain. \\input{part}\n\\end{document}\n"


def tar(**members: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def test_a_paper_is_its_main_file_with_what_it_includes(read_bytes: Any):
    data = gzip.compress(
        tar(**{"a.tex": b"Part one.", "part.tex": b"Part \\input{main}two.", "main.tex": PAPER, "f.eps": b"\xff"})
    )
    (row,) = read_bytes("2105.01234.tar.gz", data, layout="arxiv")
    assert isinstance(row, Document)
    assert row.text == "Main. Part two."
    assert (row.id, row.metadata) == ("2105.01234", {"url": "https://arxiv.org/abs/2105.01234", "date": "2021-05"})


def test_an_archive_of_a_month_holds_papers_of_every_form(read_bytes: Any):
    members = {
        "0001/hep-th0001001.gz": gzip.compress(tar(**{"x.tex": PAPER})),
        "0001/hep-th0001002.gz": gzip.compress(b"\\begin{document}One file.\\end{document}"),
        "0001/hep-th0001003.pdf": b"%PDF-1.4",
        "0001/hep-th0001004.gz": b"not compressed",
        "0001/hep-th0001005.gz": gzip.compress(tar(**{"a.txt": b"withdrawn"})),
        "0001/hep-th0001006.gz": gzip.compress(b"\\begin{document}caf\xe9\\end{document}"),
        "0001/hep-th0001007.gz": gzip.compress(
            b"\\usepackage[latin1]{inputenc}\\begin{document}caf\xe9\\end{document}"
        ),
    }
    rows = read_bytes("arXiv_src_0001_001.tar", tar(**members), layout="arxiv")
    found = [row.text if isinstance(row, Document) else (row.kind, row.damaged) for row in rows]
    assert found == [
        "Main. \\input{part}".replace("\\input{part}", "").strip(),
        "One file.",
        ("no source", False),
        ("damaged gzip", True),
        ("no LaTeX", False),
        ("invalid UTF-8", True),
        "caf\u00e9",
    ]
    assert rows[0].id == "hep-th/0001001"
    assert rows[0].metadata["date"] == "2000-01"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_fuzz_papers_in_are_rows_out(read_bytes: Any, papers: list[bytes]):
    members = {f"0001/p{number}.gz": gzip.compress(data) for number, data in enumerate(papers)}
    rows = read_bytes("a.tar", tar(**members), layout="arxiv")
    assert len(rows) == max(len(papers), 1)
