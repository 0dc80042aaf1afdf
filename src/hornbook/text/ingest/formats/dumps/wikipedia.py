"""MediaWiki dumps (export schema 0.10 and 0.11): one document per article, its markup stripped.

A dump is cut at `<page>` and `</page>`, which text cannot contain: memory holds one page, and a damaged page is one
row.
"""

import re
from collections.abc import Iterator
from urllib.parse import quote
from xml.etree import ElementTree

from hornbook.text.ingest.compressions import DamagedStream
from hornbook.text.ingest.document import Document, ReadOptions, Row, identifier, reject, short, too_long
from hornbook.text.ingest.formats.dumps.markup import DROPPED_LINKS, strip_markup
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import Buffered

_HEAD_LIMIT = 2**20
_MARKUP_ROOM = 2**16
_BASE = re.compile(rb"<base>([^<]{1,500})</base>")
_NAMESPACE = re.compile(rb'<namespace key="(-?\d{1,6})"[^>/]{0,100}>([^<]{1,100})</namespace>')
_HEAD = re.compile(rb".*</siteinfo>|.*?<mediawiki[^>]*>", re.DOTALL)
_FILES = (b"6", b"14")
"""Namespaces of media and categories: links there are no words of the article."""


def read_pages(file: InputFile, stream: Buffered, options: ReadOptions) -> Iterator[Row]:
    """Redirects and pages of other namespaces are dropped with their reason."""
    line = 1
    wiki: tuple[str, frozenset[str]] | None = None
    limit = options.max_bytes + _MARKUP_ROOM
    while True:
        try:
            before, size, complete = stream.until(b"<page>", _HEAD_LIMIT)
            if strange := _strange(before, first=wiki is None):
                reason = "not a page: text between pages, perhaps a page whose tag is damaged"
                yield reject(file, line, reason, strange, size)
            wiki = wiki or _wiki(before)
            line += before.count(b"\n")
            if not complete:
                if size <= _HEAD_LIMIT and not before.rstrip().endswith(b"</mediawiki>"):
                    yield reject(file, line, "truncated dump: it ends without </mediawiki>")
                return
            page, size, complete = stream.until(b"</page>", limit)
        except DamagedStream as error:
            yield reject(file, line, str(error))
            return
        if not complete:
            yield reject(file, line, "truncated page: it has no </page>", page, size)
            return
        yield too_long(file, line, size, options, page) if size > limit else _page(file, line, page, *wiki)
        line += page.count(b"\n")


def _strange(before: bytes, *, first: bool) -> bytes:
    """Text before a page, or after the last one, that should not be there. `first`: the head of the dump may be."""
    head = _HEAD.match(before) if first else None
    rest = before[head.end() if head else 0 :].strip()
    return rest.removesuffix(b"<page>").removesuffix(b"</mediawiki>").strip()


def _wiki(head: bytes) -> tuple[str, frozenset[str]]:
    """(the address of a page without its title, if the dump says it; lower-case prefixes of links that are no text)."""
    base = _BASE.search(head)
    address = base.group(1).decode("utf-8", "replace").rpartition("/")[0] + "/" if base else ""
    own = {name.decode("utf-8", "replace").lower() for key, name in _NAMESPACE.findall(head) if key in _FILES}
    return address, DROPPED_LINKS | own


def _page(file: InputFile, line: int, data: bytes, address: str, dropped: frozenset[str]) -> Row:
    try:
        page = ElementTree.fromstring(b"<page>" + data)
    except (ElementTree.ParseError, ValueError) as error:
        return reject(file, line, f"invalid XML: {short(error)}", data)
    title, space = page.findtext("title", ""), page.findtext("ns", "0")
    if space != "0":
        return reject(file, line, f"not an article: namespace {space[:12]!a}", data, damaged=False)
    if page.find("redirect") is not None:
        return reject(file, line, "redirect", data, damaged=False)
    revision = page.find("revision[last()]")
    text = None if revision is None else revision.findtext("text")
    if revision is None or text is None:
        return reject(file, line, "missing text: the page has no <text>", data)
    origin = f"{file.name}:{line}"
    metadata = {"title": title, "date": revision.findtext("timestamp", "")}
    if address:
        metadata["url"] = address + quote(title.replace(" ", "_"), safe="/:@!$*(),;~'")
    body = strip_markup(text, dropped)
    return Document(
        f"{title}\n\n{body}" if body else "", identifier(page.findtext("id"), origin), file.source, metadata, origin
    )
