"""LaTeX files: one document per file."""

from collections.abc import Iterator

from hornbook.text.ingest.compressions import DamagedStream
from hornbook.text.ingest.document import Document, Rejected, excerpt
from hornbook.text.ingest.formats.latex.markup import strip_latex
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import HashingFile, plain_text, read_whole, why_not_utf8
from hornbook.text.ingest.rows import ReadOptions, Row

MOST_LATEX = 2**22
"""Bytes of LaTeX that are one paper: its braces are paired in memory."""


def read(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """The text of the file without what steers LaTeX."""
    try:
        data, size = read_whole(plain_text(raw, file.compression), min(MOST_LATEX, options.max_bytes))
    except DamagedStream as error:
        yield Rejected(file.name, 0, str(error), file.source)
        return
    if data is None:
        reason = (
            f"row longer than the limit: {size} bytes, at most {min(MOST_LATEX, options.max_bytes)} of LaTeX are read"
        )
        yield Rejected(file.name, 0, reason, file.source, "", size)
        return
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        yield Rejected(file.name, 0, why_not_utf8(data, error), file.source, excerpt(data), size)
        return
    yield Document(strip_latex(text), file.name, file.source, {}, file.name)
