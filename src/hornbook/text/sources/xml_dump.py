"""Dumps in XML: MediaWiki's pages-articles and StackExchange's Posts, told apart by their beginning."""

from collections.abc import Iterator

from hornbook.text.compressions import DamagedStream
from hornbook.text.document import Rejected, excerpt
from hornbook.text.inputs import InputFile
from hornbook.text.lines import HashingFile, plain_text
from hornbook.text.rows import ReadOptions, Row
from hornbook.text.sources import stackexchange, wikipedia
from hornbook.text.sources.buffered import Buffered

_HEAD = 4096


def read(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """Pages, or questions with their best answers."""
    stream = Buffered(plain_text(raw, file.compression))
    try:
        head = stream.peek(_HEAD)
        if b"<mediawiki" in head:
            yield from wikipedia.read_pages(file, stream, options)
        elif b"<posts" in head:
            yield from stackexchange.read_posts(file, stream, options)
        else:
            reason = "unknown XML: neither MediaWiki's <mediawiki> nor StackExchange's <posts> is near its beginning"
            yield Rejected(file.name, 0, reason, file.source, excerpt(head))
    except DamagedStream as error:
        yield Rejected(file.name, 0, str(error), file.source)
