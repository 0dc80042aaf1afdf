"""PDF and docx: their text in order, what cannot be read by its name, and what is missing by the extra's."""

import importlib.util
import io
import sys
import time
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pytest

from hornbook.errors import UsageError
from hornbook.files.extras import install_command
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.document import Document, ReadOptions, Rejected
from hornbook.text.ingest.formats import office
from hornbook.text.ingest.inputs import list_inputs, passed_over
from hornbook.text.ingest.readers import read_file

WORD = "http://schemas.openxmlformats.org/wordprocessingml/2006/main"
STRICT = "http://purl.oclc.org/ooxml/wordprocessingml/main"


def pdf(*pages: str) -> bytes:
    """A PDF of that many pages; lines of a page are drawn one below the other. No table of objects: readers mend it."""
    kids = " ".join(f"{3 + 2 * number} 0 R" for number in range(len(pages)))
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {len(pages)}>>".encode()]
    font = "<</Font<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica/Encoding/WinAnsiEncoding>>>>>>"
    for number, page in enumerate(pages):
        lines = "".join(f"({line})Tj 0 -20 Td " for line in page.splitlines())
        content = zlib.compress(f"BT /F 12 Tf 50 700 Td {lines}ET".encode("latin-1"))
        size = f"/MediaBox[0 0 600 800]/Resources{font}/Contents {4 + 2 * number} 0 R"
        objects.append(f"<</Type/Page/Parent 2 0 R{size}>>".encode())
        objects.append(b"<</Length %d/Filter/FlateDecode>>stream\n%s\nendstream" % (len(content), content))
    body = b"".join(b"%d 0 obj\n%s\nendobj\n" % (number, value) for number, value in enumerate(objects, 1))
    return b"%%PDF-1.4\n%strailer\n<</Root 1 0 R/Size %d>>\n%%%%EOF" % (body, len(objects) + 1)


def docx(body: str, name: str = "word/document.xml", namespace: str = WORD) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        archive.writestr(name, f'<w:document xmlns:w="{namespace}"><w:body>{body}</w:body></w:document>')
    return file.getvalue()


def paragraph(text: str) -> str:
    return f"<w:p><w:r><w:t>{text}</w:t></w:r></w:p>"


def test_all_pages_of_a_pdf_are_one_document(read_bytes: Any):
    (row,) = read_bytes("a.pdf", pdf("Caf\xe9 one\nline two", "", "page three is hy-\nphenated"))
    assert isinstance(row, Document)
    assert row.text == "Caf\xe9 one\nline two\n\npage three is hyphenated"


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("a.pdf", b"%PDF-1.4 no more", "pdf cannot be read: Failed to load document"),
        ("a.pdf", pdf("", ""), "pdf without text: where its pages are pictures"),
        ("a.pdf", pdf(*["many words on a line of a page\n" * 30] * 12), "row longer than the limit: 9"),
        ("a.docx", docx(paragraph("long " * 999) * 9), "row longer than the limit: 9990 bytes, max_document_bytes is"),
        ("a.docx", docx(""), "docx without text"),
        ("a.docx", docx("<w:p>"), "damaged docx: mismatched tag"),
        ("a.docx", docx("", "xl/workbook.xml"), "not a docx: it holds no word/document.xml"),
        ("a.docx", b"\xd0\xcf\x11\xe0 an old .doc", "damaged zip: it has no directory at its end"),
    ],
)
def test_what_cannot_be_read_is_named(read_bytes: Any, name: str, data: bytes, reason: str):
    (row,) = read_bytes(name, data, max_bytes=9000)
    assert row.reason.startswith(reason), row.reason


def test_streams_without_an_end_cost_no_time(read_bytes: Any):
    data = pdf("page").replace(b"4 0 obj\n", b"4 0 obj\n<</Length 52>>stream\n" * 10_000, 1)
    begun = time.process_time()
    assert read_bytes("a.pdf", data)[0].reason == "damaged pdf: 10000 of its streams have no end"
    assert time.process_time() - begun < 1


@pytest.mark.parametrize("namespace", [WORD, STRICT])
@pytest.mark.parametrize("name", ["word/document.xml", "word/document2.xml"])
def test_paragraphs_of_a_docx_in_order(read_bytes: Any, name: str, namespace: str):
    box = f"<w:r><c><Choice>{paragraph('box')}</Choice><Fallback>{paragraph('box')}</Fallback></c></w:r>"
    moved = "<w:moveFrom><w:r><w:t>moved</w:t></w:r></w:moveFrom>"
    tabs = "<w:pPr><w:tabs><w:tab/></w:tabs></w:pPr>"
    words = "<w:r><w:t>one</w:t><w:tab/><w:t>two</w:t><w:br/><w:t>&lt;3</w:t></w:r>"
    edited = "<w:ins><w:r><w:t> new</w:t></w:r></w:ins><w:del><w:r><w:delText> old</w:delText></w:r></w:del>"
    body = f"<w:p>{tabs}{words}{moved}{edited}</w:p><w:p>{box}{words}</w:p><w:sdt>{paragraph('last')}</w:sdt>"
    (row,) = read_bytes("a.docx", docx(body, name, namespace))
    assert row.text == "one\ttwo\n<3 new\nbox\none\ttwo\n<3\nlast"


def test_a_row_of_a_table_is_a_line(read_bytes: Any):
    def cells(*texts: str) -> str:
        return "<w:tr>" + "".join(f"<w:tc>{text}</w:tc>" for text in texts) + "</w:tr>"

    inner = f"<w:tbl>{cells(paragraph('x'), paragraph('y'))}</w:tbl>"
    rows = cells(paragraph("a") + paragraph("b"), paragraph("c")) + cells(inner + paragraph("d"), paragraph("e"))
    (row,) = read_bytes("a.docx", docx(f"{paragraph('before')}<w:tbl>{rows}</w:tbl>{paragraph('after')}"))
    assert row.text == "before\na b\tc\nx\ty d\te\nafter"


def test_entities_that_expand_are_stopped(read_bytes: Any):
    lines = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w") as archive:
        archive.writestr(
            "word/document.xml", f'<!DOCTYPE d [<!ENTITY e0 "ha">{lines}]><d><p><r><t>&e11;</t></r></p></d>'
        )
    (row,) = read_bytes("a.docx", bomb.getvalue())
    assert row.reason.startswith(("damaged docx: limit on input amplification", "row longer than the limit"))


def test_markup_beyond_the_limit_is_not_kept(read_bytes: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(office, "_BODY_BYTES", 2**19)
    (row,) = read_bytes("a.docx", docx(paragraph("") * 40_000))
    assert row.reason == "row longer than the limit: its markup has more than 524288 bytes"


def test_documents_in_archives_are_read(read_bytes: Any):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.docx", docx(paragraph("word")))
        archive.writestr("b.pdf", pdf("page"))
    assert [row.text for row in read_bytes("a.zip", file.getvalue())] == ["word", "page"]


def test_a_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("hornbook.text.ingest.inputs.find_spec", lambda name: importlib.util.find_spec(name + "-none"))
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    for name in ("a.txt", "b.docx", "c.pdf", "only/d.pdf"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    config = SourceConfig(paths=[str(tmp_path)])
    files = list_inputs("s", config)
    assert [Path(file.path).name for file in files] == ["a.txt", "b.docx"]
    assert passed_over(config, files) == {".pdf": 2}
    with pytest.raises(UsageError, match=r"c\.pdf: pdf needs pypdfium2: .*pip install") as caught:
        list_inputs("s", SourceConfig(paths=[str(tmp_path / "c.pdf")]))
    assert install_command("documents") in str(caught.value)
    with pytest.raises(UsageError, match=r"holds no file that can be read \(.*\.pdf \(extra documents\)"):
        list_inputs("s", SourceConfig(paths=[str(tmp_path / "only")]))
    packed = tmp_path / "e.zip"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("f.pdf", pdf("page"))
    (row,) = read_file(*list_inputs("s", SourceConfig(paths=[str(packed)])), ReadOptions())
    assert isinstance(row, Rejected)
    assert row.reason == f"pdf needs pypdfium2: {install_command('documents')}"
