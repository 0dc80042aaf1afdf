"""Web pages: decoded as they declare, then the main content as plain text (resiliparse, extra `web`)."""

import codecs
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

from hornbook.errors import UsageError
from hornbook.files.extras import install_command
from hornbook.text.ingest.charsets import BOM, UnfitRow
from hornbook.text.ingest.compressions import Stream, decompressed
from hornbook.text.ingest.document import Document, ReadOptions, Row, read_at_once, short
from hornbook.text.ingest.inputs import InputFile

_HEAD_BYTES = 4096
_META = re.compile(rb"""<meta\s[^>]{0,400}?charset\s{0,8}=\s{0,8}["']?\s{0,8}([\w:.-]{1,40})""", re.IGNORECASE)
_XML = re.compile(rb"""<\?xml\s[^>]{0,200}?encoding\s{0,8}=\s{0,8}["']([\w:.-]{1,40})""", re.IGNORECASE)
_MARKS = {BOM: "utf-8", b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}

MOST_NESTED, MOST_OPTIONS, MOST_FORMATS, MOST_ATTRIBUTES = 256, 5000, 1_000_000, 256
"""Elements open at once, options of forms, formatting elements that the parser makes by itself, attributes of one
element: each costs time that grows with its square, in the parser or in the extraction."""
_FORMATS = frozenset(("b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u"))
_TAG = re.compile(r"<(/?)([a-zA-Z][a-zA-Z0-9]*)")
_ATTRIBUTE = (
    r"""[ \t\n\f\r/]*+[^> \t\n\f\r/][^ \t\n\f\r/>=]*+"""
    r"""(?:[ \t\n\f\r]*+=[ \t\n\f\r]*+(?:"[^"]*+"|'[^']*+'|(?!["'>])[^ \t\n\f\r>]++)?+)?+"""
)
"""Name and value as the tokenizer takes them (HTML standard, 13.2.5.32 to 13.2.5.39)."""
_ONE = re.compile(_ATTRIBUTE)
_ATTRIBUTES = re.compile(rf"(?:{_ATTRIBUTE}){{0,{MOST_ATTRIBUTES}}}+[ \t\n\f\r/]*+")
_MERGED = frozenset(("html", "body"))
"""Elements of which there is one: further tags add their attributes to it."""
_CLOSED_BY_OTHERS = (
    "a nobr area base br col embed hr img input link meta param source track wbr "
    "p li dt dd option optgroup tr td th tbody thead tfoot colgroup rb rp rt rtc html head body"
)
_UNCOUNTED = frozenset(_CLOSED_BY_OTHERS.split())


def read(file: InputFile, raw: Stream, options: ReadOptions) -> Iterator[Row]:
    """One document per file."""

    def page(data: bytes) -> Row:
        text, metadata = page_text(data)
        return Document(text, file.name, file.source, metadata, file.name)

    return read_at_once(file, decompressed(raw, file.compression), options, page)


def page_text(data: bytes, declared: str = "") -> tuple[str, dict[str, Any]]:
    """(text, metadata) of a page. `declared`: the charset of the transport.

    A byte order mark goes before the transport, and that before what the page itself says (HTML standard, 13.2.3.2).
    Raises UnfitRow where it cannot be read, UsageError where resiliparse is not installed.
    """
    parse, extract, map_encoding = extractor()
    encoding = map_encoding(declared_charset(data, declared)) or "utf-8"
    try:
        text = _decode(data, encoding)
    except UnicodeDecodeError as error:
        raise UnfitRow(f"invalid {encoding}: byte {error.start} is 0x{data[error.start]:02x}") from error
    except (LookupError, ValueError) as error:
        raise UnfitRow(f"unknown charset: {encoding[:40]!a}") from error
    if problem := why_costly(text):
        raise UnfitRow(f"costly page: {problem}")
    try:
        tree = parse(text)
        metadata = _metadata(tree)
        extracted = extract(tree, main_content=True)
    except (ValueError, RuntimeError) as error:
        raise UnfitRow(f"HTML cannot be read: {short(error)}") from error
    return extracted.encode("utf-8", "replace").decode(), metadata


def declared_charset(data: bytes, declared: str) -> str:
    """The name by which a page is to be decoded."""
    mark = next((name for start, name in _MARKS.items() if data.startswith(start)), "")
    if mark or declared:
        return mark or declared
    match = _XML.match(data[:_HEAD_BYTES]) or _META.search(data[:_HEAD_BYTES])
    name = match.group(1).decode("ascii", "replace") if match else "utf-8"
    return "utf-8" if name.lower().startswith("utf-16") else name  # what is read as ASCII is not UTF-16


def _decode(data: bytes, encoding: str) -> str:
    """As the web does: bytes that windows-1252 leaves open are control characters."""
    data = data.removeprefix(BOM) if encoding == "utf-8" else data
    if encoding == "cp1252":
        return data.decode("cp1252", "hornbook-c1")
    return data.decode(encoding).removeprefix("\ufeff")


def _as_control(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(map(chr, error.object[error.start : error.end])), error.end


codecs.register_error("hornbook-c1", _as_control)


class _OpenElements:
    """The open elements while the tags of a page are read, and their cost."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.depth = self.formats = self.made = self.options = self.merged = 0
        self.crowded = False
        self._read = 0

    def start_tag(self, name: str, counted: bool) -> None:
        self.options += name == "option"
        self.made += self.formats  # what is open is made anew in every block
        if counted:
            self.counts[name] += 1
            self.depth += 1
            self.formats += name in _FORMATS

    def end_tag(self, name: str) -> None:
        if self.counts[name]:
            self.counts[name] -= 1
            self.depth -= 1
            self.formats -= name in _FORMATS

    def count_attributes(self, html: str, match: re.Match[str], name: str) -> None:
        """Look at the attributes of a start tag.

        A tag within the tag before has fewer of them and is passed over; but what stands in quotes may be tags too,
        where the tag before is none (in a script, a comment).
        """
        if match.start() < self._read:
            return
        attributes = _ATTRIBUTES.match(html, match.end())
        assert attributes is not None
        given = attributes.group()
        self.crowded |= html[attributes.end() : attributes.end() + 1] not in (">", "")
        if name in _MERGED:
            self.merged += sum(1 for _ in _ONE.finditer(given))
            self.crowded |= self.merged > MOST_ATTRIBUTES
        self._read = match.end() if '"' in given or "'" in given else attributes.end()

    def problem(self) -> str:
        if self.crowded:
            return f"an element has more than {MOST_ATTRIBUTES} attributes"
        if self.depth > MOST_NESTED:
            return f"nested too deep: more than {MOST_NESTED} elements are open at once"
        if self.made > MOST_FORMATS:
            return "formatting is never closed: it would be made anew in every paragraph"
        return f"more than {MOST_OPTIONS} options in its forms" if self.options > MOST_OPTIONS else ""


def why_costly(html: str) -> str:
    """Why a page would take more than linear time to parse or to extract; empty where it would not.

    Elements that others close are not counted as open; but within SVG and MathML nothing is closed by others, though a
    tag may close itself.
    """
    opened = _OpenElements()
    for match in _TAG.finditer(html):
        name = match.group(2).lower()
        if match.group(1):
            opened.end_tag(name)
            continue
        counted = name not in _UNCOUNTED
        if opened.counts["svg"] or opened.counts["math"]:
            end = html.find(">", match.end())
            counted = html[end - 1] != "/"
            if end < 0:
                break
        opened.start_tag(name, counted)
        opened.count_attributes(html, match, name)
        if problem := opened.problem():
            return problem
    return ""


def _metadata(tree: Any) -> dict[str, Any]:
    """What a page says of itself: its address and its licence (`rel=license`)."""
    metadata: dict[str, Any] = {}
    document = tree.document
    for name, selector in (("url", "link[rel=canonical]"), ("licence", "[rel~=license][href]")):
        node = document.query_selector(selector)
        value = node.getattr("href") if node is not None else None
        if value:
            metadata[name] = value
    return metadata


@cache
def extractor() -> tuple[Any, Any, Any]:
    """resiliparse: (from HTML to its tree, from a tree to text, from a charset's name to that of a codec).

    Raises UsageError where it is not installed.
    """
    try:
        from resiliparse.extract.html2text import extract_plain_text  # pyright: ignore[reportMissingModuleSource]
        from resiliparse.parse.encoding import map_encoding_to_html5  # pyright: ignore[reportMissingModuleSource]
        from resiliparse.parse.html import HTMLTree
    except ImportError as error:
        raise UsageError(
            f"web pages need resiliparse, which is not installed: {install_command('web')}, or leave .html and "
            ".warc files out of the paths (.wet files need nothing)"
        ) from error
    return HTMLTree.parse, extract_plain_text, map_encoding_to_html5
