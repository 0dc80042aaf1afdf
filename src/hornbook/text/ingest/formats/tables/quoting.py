"""Whether a .tsv quotes its cells, as pandas and the writers of csv do, or takes quotes for text: by its beginning."""

import csv
import io
import re
from contextlib import suppress

from hornbook.text.ingest.charsets import plain_text
from hornbook.text.ingest.compressions import DamagedStream
from hornbook.text.ingest.lines import CHUNK

SAMPLE_BYTES = 1 << 20
_QUOTED_CELL = re.compile(r'(?:^|\t)"', re.MULTILINE)
_DOUBLED = re.compile(r'[^\t\n"]""|""[^\t\r\n"]')


def quotes_cells(stored: bytes, compression: str | None, encoding: str = "") -> bool:
    """Whether cells of a table are quoted. `stored`: the first SAMPLE_BYTES of its file.

    They are where rows by quotes are as wide as the header, and rows by line ends are not; where both are, doubled
    quotes or a quoted header decide.
    """
    data, stream = b"", plain_text(io.BytesIO(stored), compression, encoding)
    with suppress(DamagedStream):  # it is cut where the sample ends
        while len(data) < SAMPLE_BYTES and (piece := stream.read(CHUNK)):
            data += piece
    whole = len(data) < SAMPLE_BYTES and len(stored) < SAMPLE_BYTES
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    if _QUOTED_CELL.search(text) is None or not _same_width(text, whole, quoted=True):
        return False
    return not _same_width(text, whole, quoted=False) or text[0] == '"' or _DOUBLED.search(text) is not None


def _same_width(text: str, whole: bool, *, quoted: bool) -> bool:
    """Whether all rows of a sample have as many cells as the first; of one that is cut the last does not count."""
    widths: list[int] = []
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    try:
        for row in csv.reader(io.StringIO(text, newline=""), delimiter="\t", quoting=quoting, strict=True):
            widths += [len(row)] if row else []
    except csv.Error as error:
        if whole or "unexpected end" not in str(error):
            return False
        widths.append(0)
    return len(set(widths if whole else widths[:-1])) == 1
