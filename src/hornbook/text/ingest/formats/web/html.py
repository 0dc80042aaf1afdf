"""Web pages: decoded as they declare, then the main content as plain text (resiliparse)."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from hornbook.text.ingest.charsets import UnfitRow, decode_declared, decode_whole
from hornbook.text.ingest.compressions import Stream, decompressed
from hornbook.text.ingest.document import Document, ReadOptions, Row, read_at_once, short
from hornbook.text.ingest.formats.web.charset import page_charset
from hornbook.text.ingest.formats.web.tags import ATTRIBUTE, MOST_ATTRIBUTES, Tag, read_tags
from hornbook.text.ingest.inputs import InputFile

MOST_NESTED, MOST_OPTIONS, MOST_FORMATS = 256, 5000, 1_000_000
"""Elements open at once, options of forms, formatting elements that the parser makes by itself (and attributes of
one element): each costs time that grows with its square, in the parser or in the extraction."""
_FORMATS = frozenset(("b", "big", "code", "em", "font", "i", "s", "small", "strike", "strong", "tt", "u"))
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
        text, metadata = page_text(data, encoding=options.encoding)
        return Document(text, file.name, file.source, metadata, file.name)

    return read_at_once(file, decompressed(raw, file.compression), options, page)


def page_text(data: bytes, declared: str = "", encoding: str = "") -> tuple[str, dict[str, Any]]:
    """(text, metadata) of a page. `declared`: the charset of the transport; `encoding`: what the user says, before it.

    Raises UnfitRow where it cannot be read.
    """
    from resiliparse.extract.html2text import extract_plain_text  # pyright: ignore[reportMissingModuleSource]
    from resiliparse.parse.html import HTMLTree

    charset = encoding or page_charset(data, declared)
    text = decode_declared(data, charset) if charset else decode_whole(data)
    if problem := why_costly(text):
        raise UnfitRow(f"costly page: {problem}")
    try:
        tree = HTMLTree.parse(text)
        metadata = _metadata(tree)
        extracted = _one_title(tree, extract_plain_text(tree, main_content=True, skip_elements=["title"]))
    except (ValueError, RuntimeError) as error:
        raise UnfitRow(f"HTML cannot be read: {short(error)}") from error
    return extracted.encode("utf-8", "replace").decode(), metadata


class _OpenElements:
    """The open elements while the tags of a page are read, and their cost."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.depth = self.formats = self.made = self.options = self.merged = 0
        self.crowded = False

    def see(self, tag: Tag) -> None:
        """Count a tag. Elements that others close are not open; in SVG and MathML only a tag closes itself."""
        name, change = tag.name, -1 if tag.closes else 1
        if not tag.closes:
            self.options += name == "option"
            self.made += self.formats  # what is open is made anew in every block
            self.crowded |= tag.crowded
            if name in _MERGED:
                self.merged += sum(1 for _ in ATTRIBUTE.finditer(tag.attributes))
                self.crowded |= self.merged > MOST_ATTRIBUTES
        counted = not tag.closes_itself if tag.foreign else name not in _UNCOUNTED
        if self.counts[name] if tag.closes else counted:
            self.counts[name] += change
            self.depth += change
            self.formats += change * (name in _FORMATS)

    def problem(self) -> str:
        if self.crowded:
            return f"an element has more than {MOST_ATTRIBUTES} attributes"
        if self.depth > MOST_NESTED:
            return f"nested too deep: more than {MOST_NESTED} elements are open at once"
        if self.made > MOST_FORMATS:
            return "formatting is never closed: it would be made anew in every paragraph"
        return f"more than {MOST_OPTIONS} options in its forms" if self.options > MOST_OPTIONS else ""


def why_costly(html: str) -> str:
    """Why a page would take more than linear time to parse or to extract; empty where it would not."""
    opened = _OpenElements()
    for tag in read_tags(html):
        opened.see(tag)
        if problem := opened.problem():
            return problem
    return ""


def _one_title(tree: Any, text: str) -> str:
    """The text without the title that a bar of links repeats directly before the page's heading."""
    node = tree.document.query_selector("h1")
    heading = re.sub(r"[ \t\r\n\f]+", " ", node.text).strip(" ") if node else ""
    twice = f"\n{heading}\n\n{heading}\n"
    return f"\n{text}\n".replace(twice, f"\n{heading}\n", 1)[1:-1] if heading else text


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
