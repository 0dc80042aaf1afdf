"""The steps that every corpus needs: Unicode form, empty documents, exact duplicates; and a function of the user's."""

import re
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.text.config.modules import load_function
from hornbook.text.ingest.document import Document, is_valid_unicode
from hornbook.text.refinery.exclusions import qualified
from hornbook.text.refinery.step import Columns, CorpusView, Decision, Edit, GlobalDecision, Measurer

_LINE_ENDS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85]")
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1b\x7f-\x9f]")
_VISIBLE = re.compile(r"[^\s\u200b-\u200f\u2028-\u202f\u205f-\u2064\ufeff]")


class Normalize(Edit):
    """Line ends, VT, FF, NEL and separators to LF; C0 and C1 controls but tab and LF removed; then the Unicode form.

    In this order: a control character between a letter and its accent would keep them apart.
    """

    counters = ("changed",)

    def edit(self, document: Document) -> tuple[str, tuple[int, ...]]:
        if not document.text.strip("\0"):  # nothing but NULs, each of which would be a match
            return "", (int(bool(document.text)),)
        text = _CONTROLS.sub("", _LINE_ENDS.sub("\n", document.text).replace("\x1f", " "))
        if self.config.form != "none" and not text.isascii():
            text = unicodedata.normalize(self.config.form, text)
        return text, (int(text != document.text),)


class PythonStep(Edit):
    """Calls `package.module:function` with each document; the result replaces the document."""

    counters = ("changed",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._call = load_function(config.call)
        self.reasons = (config.name or config.call,)

    def edit(self, document: Document) -> tuple[str | None, tuple[int, ...]]:
        """The function's text, None to drop the document. Raises UsageError naming document and function."""
        try:
            found = self._call(document)
        except Exception as error:
            message = f"{self.config.call} failed on document {document.id!r} ({document.origin}): "
            raise UsageError(f"{message}{type(error).__name__}: {error}") from error
        text = found.text if isinstance(found, Document) else found
        if text is not None and not isinstance(text, str):
            raise UsageError(
                f"{self.config.call} gave {type(found).__name__} for document {document.id!r}: "
                "give a Document, its new text, or None to drop it"
            )
        if text is not None and not is_valid_unicode(text):
            raise UsageError(
                f"{self.config.call} gave text with a lone surrogate for document {document.id!r}: "
                "it cannot be written as UTF-8; take such characters out"
            )
        return text, (int(text is not None and text != document.text),)


class Sizes(Measurer):
    """Measures the characters of a document, and whether one of them is visible."""

    name = "text"
    columns = {"characters": "int64", "visible": "bool"}  # noqa: RUF012 - read only

    def measure(self, documents: Sequence[Document]) -> Columns:
        characters = np.array([len(document.text) for document in documents], dtype=np.int64)
        return {"characters": characters, "visible": np.array([is_visible(each.text) for each in documents], bool)}


def is_visible(text: str) -> bool:
    """Whether a character of the text is visible."""
    return _VISIBLE.search(text) is not None


class DropEmpty(Decision):
    """Documents without a visible character."""

    reasons = ("empty",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.measurers = (Sizes(),)
        self.needs = ("text.visible",)

    def decide(self, columns: Columns) -> np.ndarray:
        return (~columns["text.visible"]).astype(np.uint8)


class Exclude(Decision):
    """Documents whose id, in all sources or in one, or whose origin the recipe names."""

    reasons = ("excluded",)
    columns = {"named": "bool"}  # noqa: RUF012 - read only

    def measure(self, documents: Sequence[Document]) -> Columns:
        names = frozenset(self.config.documents)
        found = [(each.id, qualified(each.source, each.id), each.origin) for each in documents]
        return {"named": np.array([not names.isdisjoint(each) for each in found], bool)}

    def decide(self, columns: Columns) -> np.ndarray:
        return columns["exclude.named"].astype(np.uint8)


class ExactDedup(GlobalDecision):
    """All but the first document of each hash of the edited text.

    Hashes are sorted in parts that fit into the budget, and read once for each part.
    """

    reasons = ("exact duplicate",)
    sketches = False
    budget = 400 * 2**20
    """Bytes of memory that it may use, beside a byte per document."""

    def decide_all(self, corpus: CorpusView) -> np.ndarray:
        drop = np.zeros(len(corpus.alive), dtype=np.uint8)
        parts = 1 + _SORTING * len(drop) // self.budget
        for part in range(parts):
            hashes, rows = _hashes(corpus, part, parts)
            high, low = hashes.T
            order = np.lexsort((low, high))  # stable: equal hashes stay in (task, row) order
            high, low = high[order], low[order]
            drop[rows[order[1:]]] = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
        return drop


_SORTING = 72
"""Bytes per hash while they are sorted: hash and row twice, the order, the sorted halves."""


def _hashes(corpus: CorpusView, part: int, parts: int) -> tuple[np.ndarray, np.ndarray]:
    """(uint64 [n, 2], rows [n]) of the documents that are alive and whose hash belongs to a part."""
    found, rows = [np.zeros((0, 2), np.uint64)], [np.zeros(0, np.int64)]
    for first, hashes in zip(corpus.firsts, corpus.stream("hash"), strict=True):
        mine = corpus.alive[first : first + len(hashes)]
        if parts > 1:
            mine = mine & (hashes[:, 0] % np.uint64(parts) == part)
        found.append(hashes[mine])
        rows.append(np.flatnonzero(mine) + first)
    return np.concatenate(found), np.concatenate(rows)
