"""StackExchange dumps, Posts.xml: one document per question, with its best answers.

An answer stands after its question, but anywhere after it, so the posts are joined in a temporary database on disk
(it is deleted with the file handle; SQLITE_TMPDIR or TMPDIR says where): memory does not grow with the dump.
"""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from xml.etree import ElementTree

from hornbook.text.ingest.charsets import UnfitRow
from hornbook.text.ingest.document import Document, ReadOptions, Row, read_each, reject, short, too_long, whole_line
from hornbook.text.ingest.formats.dumps.markup import plain_html
from hornbook.text.ingest.inputs import InputFile
from hornbook.text.ingest.lines import Buffered, Line, read_lines

BEST_ANSWERS = 3
"""The accepted answer, then those of the highest positive scores."""
_QUESTION, _ANSWER = "1", "2"
_SITE = re.compile(r"(?:^|/)([a-z0-9.-]+\.(?:com|net|org))(?:-Posts\.xml|/)", re.IGNORECASE)
_FRAME = re.compile(rb"(?:\s*(?:<\?xml[^>]{0,200}>|<posts[^>]{0,200}>|</posts>))+")
"""What stands around the rows; in some dumps on the lines of rows."""
_TABLES = """
    CREATE TABLE question (id INTEGER, line INTEGER, title TEXT, body TEXT, accepted TEXT, date TEXT, licence TEXT);
    CREATE TABLE answer (id TEXT, line INTEGER, question INTEGER, score INTEGER, body TEXT);
"""
_BEST = """
    SELECT body FROM answer WHERE question = ? AND (id = ? OR score > 0)
    ORDER BY id = ? DESC, score DESC, line LIMIT ?
"""
_ORPHANS = "SELECT line, length(body) FROM answer WHERE question NOT IN (SELECT id FROM question) ORDER BY line"


def read_posts(file: InputFile, stream: Buffered, options: ReadOptions) -> Iterator[Row]:
    """First what is no post, in the order of the file; then the questions; then answers whose question is not there."""
    with closing(sqlite3.connect("", isolation_level=None)) as posts:
        posts.executescript(f"PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; {_TABLES}")
        lines = read_lines(stream, options.max_bytes)
        yield from read_each(file, lines, lambda line: _keep(posts, file, line, options))
        posts.execute("CREATE INDEX answers ON answer (question)")
        posts.execute("CREATE INDEX questions ON question (id)")
        site = _SITE.search(file.name)
        for post in posts.execute("SELECT * FROM question ORDER BY line"):
            yield _thread(posts, file, post, site.group(1) if site else "", options)
        for line, size in posts.execute(_ORPHANS):
            yield reject(file, line, "answer without its question", b"", size, damaged=False)


def _keep(posts: sqlite3.Connection, file: InputFile, line: Line, options: ReadOptions) -> Iterator[Row]:
    """Put the posts of a line into the database; a row for each that is none."""
    data = whole_line(line, options)
    frame = _FRAME.match(data)
    text = data[frame.end() if frame else 0 :].strip().removesuffix(b"</posts>")
    if not text:
        return
    try:
        elements = list(ElementTree.fromstring(b"<posts>" + text + b"</posts>"))
    except (ElementTree.ParseError, ValueError) as error:
        raise UnfitRow(f"invalid XML: {short(error)}") from error
    if not elements:
        raise UnfitRow("not a post: text outside of rows")
    for post in elements:
        kind = post.get("PostTypeId")
        if post.tag != "row":
            reason = f"not a post: the element is {post.tag[:20]!a}, not 'row'"
            yield reject(file, line.number, reason, data)
        elif kind not in (_QUESTION, _ANSWER):
            reason = f"neither question nor answer: post type {str(kind)[:12]!a}"
            yield reject(file, line.number, reason, b"", line.size, damaged=kind is None)
        else:
            try:
                _insert(posts, line.number, post.attrib)
            except (ValueError, OverflowError) as error:
                yield reject(file, line.number, f"invalid post: {short(error)}", data)


def _insert(posts: sqlite3.Connection, line: int, post: dict[str, str]) -> None:
    """Put a question or an answer into its table. Raises ValueError or OverflowError for a number that is none."""
    number, body = int(post.get("Id", "")), post.get("Body", "")
    if post["PostTypeId"] == _ANSWER:
        values: tuple[Any, ...] = (str(number), line, int(post.get("ParentId", "")), int(post.get("Score", "0")), body)
        posts.execute("INSERT INTO answer VALUES (?, ?, ?, ?, ?)", values)
        return
    named = (post.get(name, "") for name in ("AcceptedAnswerId", "CreationDate", "ContentLicense"))
    posts.execute(
        "INSERT INTO question VALUES (?, ?, ?, ?, ?, ?, ?)", (number, line, post.get("Title", ""), body, *named)
    )


def _thread(posts: sqlite3.Connection, file: InputFile, post: tuple[Any, ...], site: str, options: ReadOptions) -> Row:
    number, line, title, body, accepted, date, licence = post
    answers = posts.execute(_BEST, (number, accepted, accepted, BEST_ANSWERS)).fetchall()
    parts = [title, plain_html(body), *(f"Answer:\n{plain_html(answer)}" for (answer,) in answers)]
    text = "\n\n".join(part for part in parts if part)
    if len(text) > options.max_bytes:
        return too_long(file, line, len(text), options)
    metadata = {"date": date, "licence": licence, "url": f"https://{site}/q/{number}" if site else ""}
    return Document(text, str(number), file.source, metadata, f"{file.name}:{line}")
