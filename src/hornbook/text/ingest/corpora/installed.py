"""A corpus that every Python installation carries: its standard library, as code and as docstrings.

It is made dirty on purpose, with copies whose removal is right, copies whose removal would be wrong, and blank
documents. Because we planted them, the precision and the recall of deduplication are true figures.
"""

import ast
import json
import os
import random
import string
import sysconfig
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pyarrow.parquet as pq

from hornbook.errors import UsageError
from hornbook.files.durable import write_atomic

SOURCES = ("code", "docstrings")
SKIPPED = {
    *("test", "tests", "idlelib", "lib2to3", "pydoc_data", "ensurepip", "site-packages", "dist-packages"),
    *("__pycache__", "turtledemo", "tkinter", "encodings"),
}
"""Folders that some installations lack, that are not part of the library, or that hold tables of characters."""

COPY_SHARE, NEAR_SHARE, BLANK_SHARE = 0.06, 0.03, 0.02
BLANKS = ("", " ", "\n\n\n", "\t \n", "\r\n", "\u200b")


Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Row = tuple[str, str]
"""(id, text)"""


DISGUISES: dict[str, Callable[[str], str]] = {
    "plain": str,
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "decomposed": lambda text: unicodedata.normalize("NFD", text),
    "trailing_nul": lambda text: text + "\0",
}
"""What is done to exact copies; the refinery's normalisation takes all of it away again."""


@dataclass(slots=True)
class Planted:
    """The truth about a written corpus."""

    documents: dict[str, int] = field(default_factory=dict)
    """Rows per source, planted ones included."""
    bytes: dict[str, int] = field(default_factory=dict)
    """UTF-8 bytes of text per source."""
    duplicates: set[str] = field(default_factory=set)
    """Ids that a right deduplication removes: all but the first of each group of equal texts."""
    copies: dict[str, int] = field(default_factory=lambda: dict.fromkeys(DISGUISES, 0))
    """How many exact copies were planted, by what was done to them."""
    natural: int = 0
    """Duplicates that the library itself contains."""
    near: set[str] = field(default_factory=set)
    """Ids of planted copies that differ in what can be seen: removing one is an error."""
    blank: set[str] = field(default_factory=set)
    """Ids of planted documents without a visible character."""

    def to_json(self) -> dict[str, object]:
        """Sets as sorted lists."""
        return {name: sorted(value) if isinstance(value, set) else value for name, value in asdict(self).items()}


def write_installed_corpus(folder: Path, *, max_bytes: int, seed: int) -> Planted:
    """Write `code.jsonl`, `docstrings.jsonl` and the truth, `planted.json`, into `folder`.

    `max_bytes` bounds the text of both sources before planting. The same Python installation and seed give
    the same bytes. Raises UsageError where the library's source files are not installed.
    """
    draw = random.Random(seed)
    library = _library_rows(max_bytes, draw)
    folder.mkdir(parents=True, exist_ok=True)
    planted = Planted()
    written: list[Row] = []
    texts: dict[str, str] = {}
    for source in SOURCES:
        rows = _make_dirty(library[source], draw, planted, texts)
        lines = (json.dumps({"id": name, "text": text}, ensure_ascii=False) for name, text in rows)
        write_atomic(folder / f"{source}.jsonl", "".join(line + "\n" for line in lines))
        planted.documents[source] = len(rows)
        planted.bytes[source] = sum(len(text.encode()) for _, text in rows)
        written += rows
    planted.duplicates = _later_members(written, texts)
    planted.natural = len(planted.duplicates) - sum(planted.copies.values())
    planted.near -= planted.duplicates
    write_atomic(folder / "planted.json", json.dumps(planted.to_json(), indent=1) + "\n")
    return planted


def _library_rows(max_bytes: int, draw: random.Random) -> dict[str, list[Row]]:
    """Rows of both sources, of files drawn at random within `max_bytes`, in the order of their paths.

    A file gives its code or its docstrings, in turn: no text of one source stands in the other, where it might be
    held out in one and trained on in the other.
    """
    root = Path(sysconfig.get_paths()["stdlib"])
    names = list(python_files(root))
    draw.shuffle(names)
    rows: dict[str, list[Row]] = {source: [] for source in SOURCES}
    filled = 0
    source = "code"
    for path in names:
        try:
            text = path.read_text(encoding="utf-8")  # line ends become LF
        except (UnicodeDecodeError, OSError):  # some files declare another encoding
            continue
        if source == "docstrings":
            text = join_docstrings(text)
        if not text.strip() or filled + len(text.encode()) > max_bytes:
            continue
        filled += len(text.encode())
        rows[source].append((f"{source}/{path.relative_to(root).as_posix()}", text))
        source = "docstrings" if source == "code" else "code"
    if not all(rows.values()):
        raise UsageError(f"this Python has no source files of its library in {root} (within {max_bytes} bytes)")
    return {source: sorted(texts) for source, texts in rows.items()}


def python_files(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED)
        for name in sorted(names):
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):
                yield Path(folder, name)


def join_docstrings(text: str) -> str:
    """Docstrings of the module and of its classes and functions, in order, with blank lines between."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ""
    docstrings = (ast.get_docstring(node) for node in _documented(tree))
    return "\n\n".join(docstring for docstring in docstrings if docstring and docstring.strip())


def _documented(node: ast.AST) -> Iterator[Documented]:
    """Nodes that may have a docstring, in the order of the text; expressions are not searched."""
    if isinstance(node, Documented):
        yield node
    for block in ("body", "handlers", "orelse", "finalbody"):
        for child in getattr(node, block, ()):
            if not isinstance(child, ast.expr):
                yield from _documented(child)


def _make_dirty(rows: list[Row], draw: random.Random, notes: Planted, texts: dict[str, str]) -> list[Row]:
    """The rows with planted ones at random positions, which `notes` then names.

    texts: id -> the text before its disguise: equal documents share it. Blank documents have none.
    """
    texts.update(rows)
    planted: list[Row] = []
    for number in range(max(len(DISGUISES), round(COPY_SHARE * len(rows)))):
        kind = list(DISGUISES)[number % len(DISGUISES)]
        name, text = draw.choice(rows)
        planted.append((f"{name}#copy-{number}-{kind}", DISGUISES[kind](text)))
        texts[planted[-1][0]] = text
        notes.copies[kind] += 1
    for number in range(max(2, round(NEAR_SHARE * len(rows)))):
        name, text = draw.choice(rows)
        position = draw.randrange(len(text) + 1)  # one visible character more: as near as different documents can be
        text = text[:position] + draw.choice(string.ascii_lowercase) + text[position:]
        planted.append((f"{name}#near-{number}", text))
        notes.near.add(planted[-1][0])
        texts[planted[-1][0]] = text
    for number in range(max(2, round(BLANK_SHARE * len(rows)))):
        planted.append((f"{rows[0][0].partition('/')[0]}/blank-{number}", draw.choice(BLANKS)))
        notes.blank.add(planted[-1][0])
    positions = sorted(draw.choices(range(len(rows) + 1), k=len(planted)))
    draw.shuffle(planted)
    dirty = list(rows)
    for position, row in zip(reversed(positions), reversed(planted), strict=True):
        dirty.insert(position, row)
    return dirty


def _later_members(rows: list[Row], texts: dict[str, str]) -> set[str]:
    """Ids of all but the first document, in the order of the rows, of each group that shares a text."""
    first: set[str] = set()
    later: set[str] = set()
    for name, _ in rows:
        text = texts.get(name)
        if text in first:
            later.add(name)
        elif text is not None:
            first.add(text)
    return later


def score(data: Path, planted: Planted) -> tuple[float, float]:
    """(precision, recall) of exact deduplication in the prepared folder `data`, against the truth."""
    removed: set[str] = set()
    for path in (data / "signals").glob("*.parquet"):
        table = pq.read_table(path, columns=["id"], filters=[("reason", "==", "exact duplicate")])
        removed.update(table["id"].to_pylist())
    right = len(removed & planted.duplicates)
    return right / max(len(removed), 1), right / max(len(planted.duplicates), 1)
