"""Public collections of inputs, where their folders are: how many are read, refused rightly or wrongly, misread?

    python -m benchmarks.reliability.public --html5lib DIR --trafilatura DIR --chardet DIR --json DIR --parquet DIR
        --warcio DIR --yauzl DIR

The folders are clones of html5lib/html5lib-tests, adbar/trafilatura, chardet/chardet, nst/JSONTestSuite,
apache/parquet-testing, webrecorder/warcio and thejoshwolfe/yauzl; none of their files is kept here. Each input goes
through the readers of `prepare`; what is right is said by the collection, and judged without those readers.
"""

import argparse
import gzip
import html
import json
import re
import tempfile
import time
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import webencodings

from benchmarks import report
from hornbook.text.config.text import SourceConfig
from hornbook.text.ingest.charsets import codec_of, decode_declared
from hornbook.text.ingest.document import Document, ReadOptions, Rejected, Row
from hornbook.text.ingest.formats.web.charset import page_charset
from hornbook.text.ingest.formats.web.html import page_text
from hornbook.text.ingest.inputs import InputFile, format_of
from hornbook.text.ingest.readers import read_file

VERDICTS = ("read", "refused rightly", "refused wrongly", "wrong text", "no main text", "crashed")
READ, RIGHTLY, WRONGLY, WRONG_TEXT, NO_MAIN, CRASHED = VERDICTS
Case = tuple[str, Callable[[], Any], Callable[[Any], str]]
"""Name of an input, what reads it, and what judges the result: a verdict."""
_DEFAULT = "windows-1252"
"""The standard's default of the tests of html5lib; hornbook's is UTF-8 (docs/sources.md)."""
_TABLES = {"SHIFT_JIS": "cp932", "GB2312": "gb18030", "TIS-620": "cp874", "iso-8859-1": "cp1252", "EUC-KR": "cp949"}
"""Python's names of the tables that the web has under names of older ones."""
_LANGUAGES = "arabic bulgarian croatian czech greek hebrew hungarian polish romanian russian slovak slovene turkish"
_DECLARED = re.compile(rb"(?:charset|encoding)\s{0,9}=\s{0,9}[\"']?\s{0,9}([\w:.-]+)", re.IGNORECASE)


@dataclass
class Tally:
    """What became of the inputs of a collection."""

    verdicts: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    """Processor seconds of one input."""
    notable: list[str] = field(default_factory=list)
    """Inputs that are neither read nor refused rightly."""


def rows_of(path: Path, kind: str = "", **options: Any) -> list[Row]:
    """The rows of a file as of one of that format, by default that of its ending."""
    known = (kind, None) if kind else format_of(path.name)
    assert known is not None
    file = InputFile("s", str(path), path.stat().st_size, "", *known)
    return list(read_file(file, ReadOptions.of(SourceConfig(paths=[str(path)], **options))))


def html5lib(folder: Path) -> Iterator[Case]:
    """Cases of the prescan."""

    def judge(name: str, charset: str) -> str:
        same = webencodings.lookup(charset) is webencodings.lookup(name) if charset else name.lower() == _DEFAULT
        return READ if same else WRONG_TEXT

    for path in sorted((folder / "encoding").glob("*.dat")):
        for number, case in enumerate(path.read_bytes().split(b"#data\n")[1:]):
            page, _, expected = case.partition(b"\n#encoding\n")
            name = expected.split(b"\n")[0].decode().strip()
            yield f"{path.name} {number}, {name}", partial(page_charset, page), partial(judge, name)


def _squeezed(text: str) -> str:
    return "".join(unicodedata.normalize("NFC", text).replace("\xad", "").split())


def trafilatura(folder: Path) -> Iterator[Case]:
    """Saved pages.

    Refused rightly: no text in the encoding that the page names. Wrong text: of the phrases that people noted, those
    with letters beyond ASCII are not in the page as decoded; no main text: none of the phrases is in what is kept.
    """
    noted = {page["file"]: page["with"] for page in json.loads((folder / "tests/evaldata.json").read_text()).values()}

    def judge(path: Path, rows: list[Row]) -> str:
        data, phrases = path.read_bytes(), [_squeezed(phrase) for phrase in noted.get(path.name, ())]
        declared = _DECLARED.search(data)
        if not isinstance(rows[0], Document):
            return WRONGLY if _decodes(data, declared.group(1).decode() if declared else "utf-8") else RIGHTLY
        page = _squeezed(html.unescape(decode_declared(data, page_charset(data) or "utf-8")))
        kept, foreign = _squeezed(rows[0].text), [phrase for phrase in phrases if not phrase.isascii()]
        if foreign and not any(phrase in page or phrase in kept for phrase in foreign):
            return WRONG_TEXT
        return NO_MAIN if phrases and not any(phrase in kept for phrase in phrases) else READ

    for path in sorted(path for path in (folder / "tests").rglob("*") if path.suffix in (".html", ".htm")):
        yield path.name, partial(rows_of, path, "html"), partial(judge, path)


def _decodes(data: bytes, encoding: str) -> bool:
    try:
        return data.decode(_TABLES.get(encoding, encoding)) is not None
    except (UnicodeDecodeError, LookupError):
        return False


def chardet(folder: Path) -> Iterator[Case]:
    """Pages, feeds as pages, and texts with their encoding named and not, by the encoding that their folder names.

    Refused rightly: they declare nothing, and are not their text in UTF-8; or most of them is NUL.
    """

    def judge(data: bytes, text: str, expected: str, rows: list[Row]) -> str:
        if isinstance(rows[0], Document):
            return READ if rows[0].text == expected else WRONG_TEXT
        declares = _DECLARED.search(data) is not None or data.decode("utf-8", "replace") == text
        return WRONGLY if declares and data.count(0) * 2 < len(data) else RIGHTLY

    for path in sorted(folder.glob("tests/*/*")):
        name, data = path.parent.name, path.read_bytes()
        for language in _LANGUAGES.split():
            name = name.removesuffix(f"-{language}")
        if codec_of(name) is None or not _decodes(data, name):
            continue
        text, label = data.decode(_TABLES.get(name, name)), f"{path.parent.name}/{path.name}"
        if path.suffix in (".html", ".xml"):
            expected = page_text(text.encode(), "utf-8")[0]
            yield f"{label} as page", partial(rows_of, path, "html"), partial(judge, data, text, expected)
        if path.suffix != ".html":
            expected = text.removeprefix("\ufeff")
            # as plain text, what a feed declares counts for nothing, so `declares` is to see none
            blind = _DECLARED.sub(b"", data)
            yield label, partial(rows_of, path, "text"), partial(judge, blind, text, expected)
            named = partial(judge, b"", "", expected)  # a refusal is wrong
            yield f"{label} as {name}", partial(rows_of, path, "text", encoding=name), named


def json_suite(folder: Path) -> Iterator[Case]:
    """Values of JSONTestSuite as the field of a row: y_ must be read, n_ refused, i_ either."""

    def read(value: bytes) -> bool:
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "a.json"
            path.write_bytes(b'[{"text": "a", "value": ' + value + b"}]")
            return all(isinstance(row, Document) for row in rows_of(path))

    def judge(kind: str, accepted: bool) -> str:
        if accepted:
            return WRONG_TEXT if kind == "n" else READ
        return WRONGLY if kind == "y" else RIGHTLY

    for path in sorted((folder / "test_parsing").glob("*.json")):
        yield path.name, partial(read, path.read_bytes()), partial(judge, path.name[0])


def parquet(folder: Path) -> Iterator[Case]:
    """Tables, with their first column of strings as the text; beside pyarrow's whole column.

    Refused rightly: pyarrow cannot read it, or there is no such column, and all rows are counted.
    """

    def strings(path: Path) -> tuple[str, list[str | None] | int]:
        """(name, values) of the column; (empty, rows) where there is none."""
        table = pq.ParquetFile(path).read()
        for name, column in zip(table.column_names, table.columns, strict=True):
            if pa.types.is_string(column.type) and "." not in name:
                return name, column.to_pylist()
        return "", max(pq.read_metadata(path).num_rows, 1)  # a file without rows is one that is refused

    def judge(expected: list[str | None] | int | None, rows: list[Row]) -> str:
        texts = [row.text for row in rows if isinstance(row, Document)]
        counted = len(texts) + sum(row.rows for row in rows if isinstance(row, Rejected))
        if isinstance(expected, list) and counted == len(expected):
            return READ if texts == [text for text in expected if text is not None] else WRONG_TEXT
        return RIGHTLY if expected is None or (counted == expected and not texts) else WRONGLY

    for path in sorted(folder.rglob("*.parquet")):
        try:
            name, expected = strings(path)
        except (OSError, pa.ArrowException, ValueError):
            name, expected = "", None
        yield path.name, partial(rows_of, path, text_field=name or "text"), partial(judge, expected)


def warcio(folder: Path) -> Iterator[Case]:
    """Web archives: a sound one gives the text of its page, and of a damaged one a row says so."""

    def judge(path: Path, rows: list[Row]) -> str:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        texts = [row.text for row in rows if isinstance(row, Document)]
        refused = any(isinstance(row, Rejected) and row.damaged for row in rows)
        if re.search("trunc|wrong", path.name):
            return RIGHTLY if refused else WRONG_TEXT
        expected = "Example Domain" if b"<title>Example Domain" in data else ""
        if refused or (expected and not texts):
            return WRONGLY
        return READ if all(expected in text for text in texts) else WRONG_TEXT

    for path in sorted((folder / "test/data").glob("*.warc*")):
        if format_of(path.name) is not None:
            yield path.name, partial(rows_of, path), partial(judge, path)


def yauzl(folder: Path) -> Iterator[Case]:
    """Zip files, sound ones beside their unpacked members. Of a bad one a row says so, or its checksums are right."""

    def judge(path: Path, rows: list[Row]) -> str:
        members = {row.id.partition(".zip!/")[2].replace("\\", "/"): row for row in rows if isinstance(row, Document)}
        refused = [row.reason for row in rows if isinstance(row, Rejected) and row.damaged]
        if path.parent.name == "failure":
            return RIGHTLY if refused else READ
        home = path.with_suffix("")
        for name, row in members.items():  # the unpacked files have names of ASCII alone
            files = [home / name] if name.isascii() else sorted(home.rglob("*"))
            if not any(file.is_file() and file.read_bytes() == row.text.encode() for file in files):
                return WRONG_TEXT
        named = all(re.search("encrypted|compressed by method", reason) for reason in refused)
        return READ if not refused else RIGHTLY if named else WRONGLY

    for path in sorted((folder / "test").rglob("*.zip")):
        yield f"{path.parent.name}/{path.name}", partial(rows_of, path), partial(judge, path)


COLLECTIONS: dict[str, Callable[[Path], Iterator[Case]]] = {
    "html5lib": html5lib,
    "trafilatura": trafilatura,
    "chardet": chardet,
    "json": json_suite,
    "parquet": parquet,
    "warcio": warcio,
    "yauzl": yauzl,
}


def measure(cases: Iterator[Case]) -> Tally:
    """Read every input and count the verdicts."""
    tally = Tally()
    for name, read, judge in cases:
        begun, result, detail = time.process_time(), None, ""
        try:
            result = read()
        except Exception as error:  # noqa: BLE001 - a crash is a verdict
            detail = f": {error!r}"[:200]
        tally.slowest = max(tally.slowest, time.process_time() - begun)
        verdict = CRASHED if detail else judge(result)
        tally.verdicts[verdict] += 1
        if verdict not in (READ, RIGHTLY):
            tally.notable.append(f"{verdict}: {name}{detail}")
    return tally


def run(folders: dict[str, Path]) -> dict[str, Tally]:
    """Read the collections that are given, print a table and, of all of them, write benchmarks/results/public.json."""
    tallies = {name: measure(COLLECTIONS[name](folder)) for name, folder in folders.items()}
    rows = [
        (name, tally.verdicts.total(), *(tally.verdicts[verdict] for verdict in VERDICTS), round(tally.slowest, 2))
        for name, tally in tallies.items()
    ]
    print(report.table(("", "inputs", *VERDICTS, "slowest s"), rows))
    for name, tally in tallies.items():
        print(*(f"{name}: {line}" for line in tally.notable), sep="\n")
    notable = {name: tally.notable for name, tally in tallies.items()}
    if len(folders) == len(COLLECTIONS):
        report.write("public", {"header": ["inputs", *VERDICTS, "slowest s"], "rows": rows, "notable": notable})
    return tallies


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for collection in COLLECTIONS:
        parser.add_argument(f"--{collection}", type=Path, metavar="DIR")
    given = vars(parser.parse_args())
    run({name: folder for name, folder in given.items() if folder is not None})
