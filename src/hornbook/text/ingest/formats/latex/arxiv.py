"""LaTeX: one document per file, or with arXiv's layout one per paper.

Read are the monthly archives of the bulk access (a tar whose members are papers, each `.gz`: a tar or one file of
LaTeX), single papers (`.tar.gz`, `.gz`) and `.tex`.
"""

import posixpath
import re
from collections.abc import Iterator

from hornbook.text.ingest.charsets import UnfitRow, decode_declared, decode_whole, mark_of
from hornbook.text.ingest.compressions import DamagedStream, Stream, decompressed
from hornbook.text.ingest.document import Document, ReadOptions, Row, reject, too_long
from hornbook.text.ingest.formats.archives.archives import Bounded, Budget
from hornbook.text.ingest.formats.archives.tar import Member, tar_members
from hornbook.text.ingest.formats.latex.markup import strip_comments, strip_latex
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import Buffered, read_whole

_BLOCK, _MAGIC = 512, slice(257, 262)
_NEW = re.compile(r"(\d{2})(\d{2})\.\d{4,5}(?:v\d+)?")
_OLD = re.compile(r"([a-z-]+(?:\.[A-Z]{2})?)(\d{2})(\d{2})(\d{3})(?:v\d+)?")
_INPUT = re.compile(r"\\(?:input|include|subfile)\s{0,4}\{?\s{0,4}([^{}\s\\%]{1,200})\s{0,4}\}?")
_INPUTENC = re.compile(
    rb"\\(?:usepackage\s{0,4}\[([a-z0-9-]{1,20})\]\s{0,4}\{inputenc\}|inputencoding\s{0,4}\{([a-z0-9-]{1,20})\})"
)
_ENCODINGS = {"ansinew": "windows-1252", "applemac": "macintosh", "cp437de": "cp437", "utf8x": "utf-8"}
"""Names of `inputenc` that are no encoding's own."""
_MAIN = re.compile(r"^[^%\n]{0,200}\\(?:begin\{document\}|documentstyle)", re.MULTILINE)
_DEEPEST = 8
MOST_LATEX = 2**22
"""Bytes of LaTeX that are one paper: its braces are paired in memory."""


def read_latex(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """The text of the file without what steers LaTeX."""
    limit = min(MOST_LATEX, options.max_bytes)
    data, size = read_whole(decompressed(raw, file.compression), limit)
    if data is None:
        reason = f"row longer than the limit: {size} bytes, at most {limit} of LaTeX are read"
        yield reject(file, 0, reason, b"", size)
        return
    yield Document(strip_latex(_decoded(data, options.encoding)), file.name, file.source, {}, file.name)


def read_arxiv(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """A row per paper."""
    stream = Buffered(Bounded(decompressed(raw, file.compression, counted=True), Budget(file.size)))
    opened = papers = 0
    own = _Sources(options.encoding)
    try:
        if stream.peek(_BLOCK)[_MAGIC] != b"ustar":
            yield _paper(file, file.path, 0, stream, options)
            return
        for opened, member in enumerate(tar_members(stream), 1):
            if member.kind == "file" and member.name.endswith((".gz", ".pdf")) and not own.files:
                papers += 1
                packed = "gzip" if member.name.endswith(".gz") else None
                inside = Bounded(decompressed(member, packed, counted=True), Budget(member.size))
                yield _paper(file, member.name, opened, Buffered(inside), options)
            else:
                own.keep(member)
        if own.files or not papers:
            yield _document(file, file.path, 0, own, options)
    except (DamagedStream, UnfitRow) as error:
        yield reject(file, opened, str(error))


class _Sources:
    """The LaTeX files of one paper, by path."""

    def __init__(self, encoding: str) -> None:
        self.files: dict[str, str] = {}
        self._size, self._encoding = 0, encoding

    def keep(self, member: Member) -> None:
        """Read a member if it is LaTeX. Raises UnfitRow, DamagedStream."""
        if member.kind == "file" and member.name.endswith(".tex"):
            self.add(posixpath.normpath(member.name), member)

    def add(self, name: str, stream: Stream) -> None:
        """Read a file of LaTeX. Raises UnfitRow, DamagedStream."""
        data, size = read_whole(stream, MOST_LATEX - self._size)
        self._size += size
        if data is None:
            raise UnfitRow(f"row longer than the limit: more than {MOST_LATEX} bytes of LaTeX in one paper")
        self.files[name] = _decoded(data, self._encoding)

    def whole(self) -> str:
        """The main file with the others where it includes them, each once."""
        mains = [name for name in sorted(self.files) if _MAIN.search(self.files[name])]
        if not mains and len(self.files) != 1:
            raise UnfitRow("no LaTeX: no file of the paper begins a document", dropped=True)
        return self._included((mains or list(self.files))[0], set(), 0)

    def _included(self, name: str, seen: set[str], depth: int) -> str:
        seen.add(name)

        def include(match: re.Match[str]) -> str:
            wanted = posixpath.normpath(match.group(1))
            target = next((each for each in (wanted, wanted + ".tex") if each in self.files and each not in seen), None)
            return match.group() if target is None or depth == _DEEPEST else self._included(target, seen, depth + 1)

        return _INPUT.sub(include, strip_comments(self.files[name]))


def _decoded(data: bytes, encoding: str) -> str:
    """LaTeX by its mark, as the user says, as UTF-8, or as its package `inputenc` says. Raises UnfitRow."""
    if encoding or mark_of(data):
        return decode_declared(data, encoding)
    try:
        return decode_whole(data)
    except UnfitRow:
        if (declared := _INPUTENC.search(data)) is None:
            raise
        label = (declared.group(1) or declared.group(2)).decode()
        return decode_declared(data, _ENCODINGS.get(label, label))


def _paper(file: InputFile, name: str, number: int, stream: Buffered, options: ReadOptions) -> Row:
    """A paper from its own stream: a tar, or one file of LaTeX."""
    sources = _Sources(options.encoding)
    try:
        head = stream.peek(_BLOCK)
        if head.startswith(b"%PDF"):
            raise UnfitRow("no source: the paper is a PDF", dropped=True)
        if head[_MAGIC] == b"ustar":
            for member in tar_members(stream):
                sources.keep(member)
        else:
            sources.add("paper.tex", stream)
        return _document(file, name, number, sources, options)
    except DamagedStream as error:
        return reject(file, number, str(error))
    except UnfitRow as why:
        return reject(file, number, str(why), damaged=not why.dropped)


def _document(file: InputFile, name: str, number: int, sources: _Sources, options: ReadOptions) -> Row:
    text = strip_latex(sources.whole())
    size = len(text.encode())
    if size > options.max_bytes:
        return too_long(file, number, size, options)
    origin = f"{file.name}:{number}" if number else file.name
    paper, date = _identity(posixpath.basename(name))
    metadata = {"url": f"https://arxiv.org/abs/{paper}", "date": date} if paper else {}
    return Document(text, paper or origin, file.source, metadata, origin)


def _identity(name: str) -> tuple[str, str]:
    """(arXiv's identifier, year and month) by the name of a file; empty where it is not named by it."""
    stem = re.sub(r"(?:\.tar)?\.(?:gz|tex|tar|tgz)$", "", name)
    if new := _NEW.fullmatch(stem):
        return stem, f"20{new.group(1)}-{new.group(2)}"
    if old := _OLD.fullmatch(stem):
        archive, year, month, number = old.groups()
        return f"{archive}/{year}{month}{number}", f"{'19' if year > '90' else '20'}{year}-{month}"
    return "", ""
