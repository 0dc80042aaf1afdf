"""Tags of a web page by the HTML standard's tokenizer (13.2.5): none in comments, scripts, styles and titles."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_ATTRIBUTE = (
    r"""[ \t\n\f\r/]*+([^> \t\n\f\r/][^ \t\n\f\r/>=]*+)"""
    r"""(?:[ \t\n\f\r]*+=[ \t\n\f\r]*+("[^"]*+"|'[^']*+'|(?!["'>])[^ \t\n\f\r>]++)?+)?+"""
)
"""Name and value as the tokenizer takes them (13.2.5.32 to 13.2.5.39)."""
ATTRIBUTE = re.compile(_ATTRIBUTE)
MOST_ATTRIBUTES = 256
"""Attributes that are read of one tag."""
_ATTRIBUTES = re.compile(rf"(?:{_ATTRIBUTE}){{0,{MOST_ATTRIBUTES}}}+[ \t\n\f\r/]*+")
_MARK = re.compile(r"<(?:(!--)|(/?)([a-zA-Z][^ \t\n\f\r/>]*+)|([!?]|/(?!>)))")
_COMMENT_END = re.compile("--!?>")
_SCRIPT_MARK = re.compile(r"<!--|-->|<(/?)script(?=[ \t\n\f\r/>])", re.IGNORECASE)
_RAW = frozenset(("style", "xmp", "iframe", "noembed", "noframes", "title", "textarea", "script", "plaintext"))
"""Elements whose content is text alone (13.2.6.4)."""
_FOREIGN = ("svg", "math")
_HTML_INSIDE = frozenset(("foreignobject", "desc", "title", "annotation-xml", "mi", "mo", "mn", "ms", "mtext"))
"""Elements of SVG and MathML that hold HTML."""
_LEAVING_NAMES = (
    "b big blockquote body br center code dd div dl dt em embed h1 h2 h3 h4 h5 h6 head hr i img li listing menu meta "
    "nobr ol p pre ruby s small span strong strike sub sup table tt u ul var"
)
_LEAVING = frozenset(_LEAVING_NAMES.split())
"""HTML elements that end SVG and MathML around them (13.2.6.5)."""


@dataclass(frozen=True, slots=True)
class Tag:
    """A start tag or an end tag."""

    name: str
    """In lower case."""
    closes: bool
    attributes: str
    """The text between the name and the `>`."""
    crowded: bool
    """The tag has more than MOST_ATTRIBUTES attributes."""
    foreign: bool
    """The tag is within SVG or MathML, where nothing is closed by other tags."""

    @property
    def closes_itself(self) -> bool:
        return self.attributes.endswith("/")


@dataclass(slots=True)
class _Context:
    """Decide which content is text alone: none is in SVG, MathML and `select`."""

    counts: Counter[str] = field(default_factory=Counter)
    """Open elements that matter here, by name."""
    unsure: bool = False
    """SVG or MathML was nested in a way that only a full parser follows: from here on tags are seen everywhere, in
    comments and values too, so that there are never fewer than a parser sees."""

    @property
    def is_foreign(self) -> bool:
        return bool(self.counts["svg"] or self.counts["math"])

    def holds_text(self, name: str) -> bool:
        """Whether a start tag makes what follows text."""
        if name not in _RAW or self.unsure or self.is_foreign:
            return False
        return name == "script" or not self.counts["select"]

    def see(self, tag: Tag) -> None:
        name, counts = tag.name, self.counts
        if not tag.closes:
            if self.is_foreign and name in _LEAVING and not any(counts[inner] for inner in _HTML_INSIDE):
                counts.clear()
            if (name in _FOREIGN or name == "select" or (self.is_foreign and name in _HTML_INSIDE)) and not (
                tag.closes_itself and name != "select"
            ):
                counts[name] += 1
        elif name == "select":
            counts[name] = 0
        elif name in _FOREIGN or name in _HTML_INSIDE:
            inside = name in _FOREIGN and any(counts[inner] for inner in _HTML_INSIDE)
            self.unsure |= inside or not counts[name]
            counts[name] = max(0, counts[name] - 1)


def read_tags(html: str) -> Iterator[Tag]:
    """All tags in order, in linear time."""
    context, position, read = _Context(), 0, 0
    while (mark := _MARK.search(html, position)) is not None:
        comment, slash, name, other = mark.groups()
        position = mark.end()
        if comment or other:
            if not context.unsure:
                position = _comment_end(html, position) if comment else _past(html, ">", position)
            continue
        # a tag within the attributes of the one before has fewer of them; what stands in quotes may have more
        given, end = ("", position) if context.unsure and position <= read else _attributes(html, position)
        read = position if '"' in given or "'" in given else end
        if end == len(html) and not context.unsure:  # the tag has no end, so it is none
            return
        crowded = bool(given) and end < len(html) and html[end] != ">"
        tag = Tag(name.lower(), bool(slash), given, crowded, context.is_foreign)
        yield tag
        context.see(tag)
        if not context.unsure:
            position = end
        if not tag.closes and context.holds_text(tag.name):
            position = _text_end(html, tag.name, position)
            context.counts[tag.name] += 1  # for its end tag, which comes next


def _attributes(html: str, position: int) -> tuple[str, int]:
    """(the attributes of a tag whose name ends at `position`, where they end)."""
    match = _ATTRIBUTES.match(html, position)
    assert match is not None
    return match.group(), match.end()


def _past(html: str, mark: str, position: int) -> int:
    found = html.find(mark, position)
    return len(html) if found < 0 else found + len(mark)


def _comment_end(html: str, position: int) -> int:
    """The end of a comment whose text starts at `position` (13.2.5.43 to 13.2.5.52)."""
    for empty in (">", "->"):
        if html.startswith(empty, position):
            return position + len(empty)
    end = _COMMENT_END.search(html, position)
    return len(html) if end is None else end.end()


def _text_end(html: str, name: str, position: int) -> int:
    """Where the end tag of an element of text begins; the length where there is none."""
    if name == "plaintext":
        return len(html)
    if name != "script":
        end = re.compile(rf"</{name}(?=[ \t\n\f\r/>])", re.IGNORECASE).search(html, position)
        return len(html) if end is None else end.start()
    state = 0  # 1: in <!-- of the script, 2: in a script within that (13.2.5.20 to 13.2.5.31)
    while (mark := _SCRIPT_MARK.search(html, position)) is not None:
        position, text = mark.end(), mark.group()
        if text == "<!--":
            state, position = max(state, 1), position - 2  # its dashes may be those of -->
        elif text == "-->":
            state = 0
        elif mark.group(1):
            if state < 2:
                return mark.start()
            state = 1
        elif state == 1:
            state = 2
    return len(html)
