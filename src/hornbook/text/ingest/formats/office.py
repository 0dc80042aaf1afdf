"""Documents of an office: PDF by pypdfium2 (extra `documents`), and Word's `.docx` (ISO/IEC 29500).

Elements of a docx are known by their names without a namespace, which the strict and the transitional form have each
of its own.
"""

import io
import re
from collections.abc import Iterable, Iterator
from typing import Any
from xml.etree import ElementTree

from hornbook.files.extras import install_command
from hornbook.text.ingest.charsets import UnfitRow
from hornbook.text.ingest.compressions import Stream, decompressed
from hornbook.text.ingest.document import Document, ReadOptions, Row, read_at_once, short, why_too_long
from hornbook.text.ingest.formats.archives.zip import zip_members
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import CHUNK

_HYPHEN = re.compile("[\x02\ufffe]\\s*")
"""pdfium's character for a hyphen at the end of a line."""
_MOST_UNENDED = 100
"""Streams without an end: pdfium looks for that of each through the rest of the file."""
_BODY = re.compile(r"word/document\d*\.xml")
_BODY_BYTES = 2**26
"""Most bytes of markup in a docx."""
_OMITTED = ("Fallback", "moveFrom")
"""Elements whose text stands elsewhere too: of drawings for older programs, and where text was moved from."""
_JOINTS = {"tc": " ", "tr": "\t"}
"""Between the lines of a cell, and between the cells of a row of a table."""
_MARKS = {"tab": "\t", "br": "\n", "cr": "\n", "noBreakHyphen": "-"}


def read(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """One document per file: the pages of a PDF, or the paragraphs of a docx."""
    lines, joint = (_pages, "\n\n") if file.format == "pdf" else (_paragraphs, "\n")

    def document(data: bytes) -> Row:
        text, size = [], 0
        for line in lines(data):
            text.append(line.encode("utf-8", "replace").decode())
            size += len(text[-1].encode())
            if size > options.max_bytes:
                raise UnfitRow(why_too_long(size, options))
        if not any(text):
            raise UnfitRow(f"{file.format} without text: where its pages are pictures, recognise their letters first")
        return Document(joint.join(text).strip(), file.name, file.source, {}, file.name)

    return read_at_once(file, decompressed(raw, file.compression), options, document)


def _pages(data: bytes) -> Iterator[str]:
    """The text of each page that has any. Raises UnfitRow."""
    try:
        import pypdfium2
    except ImportError as error:
        raise UnfitRow(f"pdf needs pypdfium2: {install_command('documents')}") from error
    if (unended := data.count(b"stream") - 2 * data.count(b"endstream")) > _MOST_UNENDED:
        raise UnfitRow(f"damaged pdf: {unended} of its streams have no end")
    try:
        with pypdfium2.PdfDocument(data) as pdf:
            for page in pdf:
                if text := _HYPHEN.sub("", page.get_textpage().get_text_bounded()).replace("\r\n", "\n").strip():
                    yield text
                page.close()
    except pypdfium2.PdfiumError as error:
        raise UnfitRow(f"pdf cannot be read: {short(error)}") from error


def _paragraphs(data: bytes) -> Iterator[str]:
    """Paragraphs of a docx in order, and each row of a table. Raises UnfitRow, or DamagedStream of a damaged zip."""
    body = next((member for member in zip_members(io.BytesIO(data)) if _BODY.fullmatch(member.name)), None)
    if body is None or body.kind != "file":
        raise UnfitRow("not a docx: it holds no word/document.xml that can be read")
    stack: list[list[str]] = [[]]  # lines of the body, and of the rows and cells that are open
    omitted = 0
    try:
        for event, element in _events(body):
            name = _local(element)
            if name in _OMITTED:
                omitted += 1 if event == "start" else -1
            elif name in _JOINTS and event == "start":
                stack.append([])
            elif name in _JOINTS:
                line = _JOINTS[name].join(stack.pop())
                stack[-1].append(line)
            elif name == "p" and event == "end" and not omitted:
                stack[-1].append("".join(_pieces(element)))
            if event == "end" and (name == "p" or name in _OMITTED):
                element.clear()  # text boxes lie in a paragraph
            if len(stack) == 1:
                yield from stack[0]
                stack[0].clear()
    except ElementTree.ParseError as error:
        raise UnfitRow(f"damaged docx: {short(error)}") from error


def _events(body: Stream) -> Iterator[Any]:
    """(start or end, element) of the markup."""
    parser, size = ElementTree.XMLPullParser(("start", "end")), 0
    while chunk := body.read(CHUNK):
        size += len(chunk)
        if size > _BODY_BYTES:
            raise UnfitRow(f"row longer than the limit: its markup has more than {_BODY_BYTES} bytes")
        parser.feed(chunk)
        yield from parser.read_events()
    parser.close()
    yield from parser.read_events()


def _pieces(paragraph: Any) -> Iterable[str]:
    for run in paragraph.iter():
        for part in run if _local(run) == "r" else ():
            yield (part.text or "") if _local(part) == "t" else _MARKS.get(_local(part), "")


def _local(element: Any) -> str:
    return element.tag.rpartition("}")[2]
