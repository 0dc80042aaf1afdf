"""The charset of a web page, as the HTML standard finds it (13.2.3): mark, transport, `meta` of the parser, prescan."""

import re
from collections.abc import Iterable, Iterator

from hornbook.text.ingest.charsets import codec_of, mark_of
from hornbook.text.ingest.formats.web.tags import ATTRIBUTE, read_tags

_PRESCAN_BYTES = 1024
_XML = re.compile(r"<\?xml\s[^>]{0,200}?encoding\s{0,8}=\s{0,8}[\"']([\w:.-]{1,40})")
_TAGS = re.compile(r"<(?:!--|(/?[a-z][^ \t\n\f\r/<>]*+)|[!/?])", re.IGNORECASE)
_CONTENT = re.compile(
    r"charset[ \t\n\f\r]*=[ \t\n\f\r]*(?:\"([^\"]*)\"|'([^']*)'|([^\"' \t\n\f\r;][^ \t\n\f\r;]*))", re.I
)


def page_charset(data: bytes, transport: str = "") -> str:
    """The label by which a page is decoded: by its mark, its transport, its own words; empty where none is known.

    A label that the web does not know is returned where the page is no UTF-8 either.
    """
    if mark := mark_of(data):
        return mark
    if codec_of(transport, web=True) is not None:
        return transport
    for start, wide in ((b"<\0?\0x\0", "utf-16-le"), (b"\0<\0?\0x", "utf-16-be")):
        if data.startswith(start):
            return wide
    page = data.decode("latin-1")
    xml = _XML.match(page)
    labels = (
        *_metas(tag.attributes for tag in read_tags(page) if tag.name == "meta" and not tag.closes),
        *_metas(_prescanned(page[:_PRESCAN_BYTES])),
        *([xml.group(1)] if xml else []),
    )
    known = next(filter(None, map(_usable, labels)), "")
    unknown = next(filter(None, (transport, *labels)), "") if not known else ""
    return known or (unknown if unknown and not _is_utf8(data) else "")


def _usable(label: str) -> str:
    """The label; `utf-8` for UTF-16, which bytes read as ASCII are not; empty where nobody knows it."""
    codec = codec_of(label, web=True)
    if codec is None:
        return ""
    return "utf-8" if codec.name.startswith("utf-16") else "windows-1252" if codec.name == "x-user-defined" else label


def _is_utf8(data: bytes) -> bool:
    try:
        return data.decode() is not None
    except UnicodeDecodeError:
        return False


def _metas(elements: Iterable[str]) -> Iterator[str]:
    """Charsets that `meta` elements of these attributes name (13.2.3.2, "prescan")."""
    for attributes in elements:
        values: dict[str, str] = {}
        for match in ATTRIBUTE.finditer(attributes):
            value = match.group(2) or ""
            values.setdefault(match.group(1).lower(), value[1:-1] if value[:1] in ('"', "'") else value)
        if "charset" in values:
            yield values["charset"]
        elif values.get("http-equiv", "").lower() == "content-type":
            label = _CONTENT.search(values.get("content", ""))
            yield next(filter(None, label.groups()), "") if label else ""


def _prescanned(page: str) -> Iterator[str]:
    """Attributes of `meta` where the standard's prescan sees one: in scripts too, since it knows no elements."""
    position = 0
    while (mark := _TAGS.search(page, position)) is not None:
        name, position = mark.group(1), mark.end()
        if name is None:
            closing = "-->" if mark.group() == "<!--" else ">"
            position = page.find(closing, position - 2 if closing == "-->" else position) + len(closing)
            if position < len(closing):
                return
            continue
        start = position
        while (attribute := ATTRIBUTE.match(page, position)) is not None:
            position = attribute.end()
        if name.lower() == "meta" and position < len(page):
            yield page[start:position]
