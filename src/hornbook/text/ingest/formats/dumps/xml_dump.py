"""Dumps in XML: MediaWiki's pages-articles and StackExchange's Posts, told apart by their beginning."""

from collections.abc import Iterator

from hornbook.text.ingest.buffered import Buffered
from hornbook.text.ingest.compressions import DamagedStream
from hornbook.text.ingest.document import Rejected, excerpt
from hornbook.text.ingest.formats.dumps import stackexchange, wikipedia
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import HashingFile, plain_text
from hornbook.text.ingest.rows import ReadOptions, Row

_HEAD = 4096


def read(file: InputFile, raw: HashingFile, options: ReadOptions) -> Iterator[Row]:
    """Pages, or questions with their best answers."""
    stream = Buffered(plain_text(raw, file.compression))
    try:
        head, rows = stream.peek(_HEAD), 0
        if b"<mediawiki" in head or b"<posts" in head:
            read_rows = wikipedia.read_pages if b"<mediawiki" in head else stackexchange.read_posts
            for row in read_rows(file, stream, options):
                rows += 1
                yield row
            if not rows:
                yield Rejected(file.name, 0, "empty dump: it holds no page and no post", file.source, damaged=False)
        else:
            reason = "unknown XML: neither MediaWiki's <mediawiki> nor StackExchange's <posts> is near its beginning"
            yield Rejected(file.name, 0, reason, file.source, excerpt(head))
    except DamagedStream as error:
        yield Rejected(file.name, 0, str(error), file.source)
