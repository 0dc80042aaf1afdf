"""Documents that contain items of test sets: n-grams of words that occur in both.

Exact: any of an item's 13-grams (Brown et al. 2020, appendix C). Fuzzy: a share of one item's 5-grams, which finds
altered items (Chowdhery et al. 2022 take 70 % of 8-grams).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.text.config.duplicates import DecontaminateConfig
from hornbook.text.ingest.document import Document
from hornbook.text.ingest.test_sets import read_rows
from hornbook.text.refinery.dedup.ngram_table import NgramTable, count_hits, largest_share, ngram_table
from hornbook.text.refinery.step import Columns, Decision
from hornbook.text.refinery.words.words import hashed_words

_READ = {"paths", "fields", "words", "ngram", "fuzzy_ngram", "min_words"}
"""Settings that decide which items are looked for."""


class Decontaminate(Decision):
    """Drops a document with too many exact n-grams, or too large a share of one item."""

    reasons = ("test item", "altered test item")
    columns = {"hits": "int64", "share": "float64", "item": "str"}  # noqa: RUF012 - read only
    fixed = ("ngram", "fuzzy_ngram", "min_words")

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.needs = (f"{self.name}.hits", f"{self.name}.share")
        self._names, self._exact, self._fuzzy = _load(config.model_dump_json(include=_READ))

    def measure(self, documents: Sequence[Document]) -> Columns:
        """The number of exact n-grams, the largest share of one item, and the item's name (of an exact one first)."""
        found = hashed_words((document.text for document in documents), self.config.words, plain=True)
        hits, exact = np.zeros(len(documents), np.int64), np.full(len(documents), -1, np.int64)
        for table in self._exact:
            count_hits(table, found.hashes, found.firsts, hits, exact)
        share, nearest = largest_share(self._fuzzy, found.hashes, found.firsts)
        item = np.where(exact >= 0, exact, nearest)
        names = np.array([self._names[number] if number >= 0 else "" for number in item.tolist()], object)
        return {"hits": hits, "share": share, "item": names}

    def decide(self, columns: Columns) -> np.ndarray:
        """1 for exact n-grams, 2 for a share."""
        hits, share = (columns[name] for name in self.needs)
        if self.config.action == "report":
            return np.zeros(len(hits), np.uint8)
        exact, altered = hits > self.config.max_hits, share > self.config.max_share
        return np.where(exact, 1, np.where(altered, 2, 0)).astype(np.uint8)


@lru_cache(maxsize=4)
def _load(config: str) -> tuple[list[str], list[NgramTable], NgramTable]:
    """The test sets, cached for the tasks of a process: names of their items; exact tables; the fuzzy table.

    The first exact table is of the full width, then comes one for each width of shorter items, which are looked for as
    a whole.
    """
    step = DecontaminateConfig.model_validate_json(config)
    names, words = _different_items(step)
    return names, *item_tables(words, step)


def item_tables(words: Sequence[np.ndarray], step: DecontaminateConfig) -> tuple[list[NgramTable], NgramTable]:
    """(exact tables, the fuzzy one) of items, given by the hashes of their words."""
    by_width: dict[int, list[int]] = {}
    for number, each in enumerate(words):
        by_width.setdefault(min(len(each), step.ngram), []).append(number)
    exact = [
        ngram_table(width, [words[number] for number in numbers], len(words), numbers)
        for width, numbers in sorted(by_width.items(), reverse=True)
    ]
    return exact, ngram_table(step.fuzzy_ngram, words, len(words), range(len(words)))


def _different_items(step: DecontaminateConfig) -> tuple[list[str], list[np.ndarray]]:
    """Names and word hashes of the items that are long enough, each different item once."""
    read = list(_read_items(step.paths, step.fields))
    found = hashed_words((text for _, text in read), step.words, plain=True)
    items: dict[bytes, str] = {}
    for (name, _), words in zip(read, np.split(found.hashes, found.firsts[1:-1]), strict=True):
        if len(words) >= step.min_words:
            items.setdefault(words.tobytes(), name)
    if not items:
        raise UsageError(
            f"decontaminate: {', '.join(step.paths)} have no item of {step.min_words} words or more; "
            "see its fields and min_words"
        )
    return list(items.values()), [np.frombuffer(words, np.uint64) for words in items]


def _read_items(paths: Sequence[str], fields: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(FILE:ROW, text) of every item. Raises UsageError naming file and row where one cannot be read."""
    for name, row in read_rows("decontaminate", paths):
        text = row if isinstance(row, str) else "\n".join(_texts(_chosen(row, fields, name)))
        if text.strip():
            yield name, text


def _chosen(row: Any, fields: Sequence[str], name: str) -> Any:
    if not fields:
        return row
    missing = [field for field in fields if not isinstance(row, dict) or field not in row]
    if missing:
        keys = ", ".join(row)[:100] if isinstance(row, dict) else "none: it is no object"
        raise UsageError(f"test set {name}: no key {missing[0]!r} (keys: {keys}); see fields of decontaminate")
    return [row[field] for field in fields]


def _texts(value: Any) -> Iterator[str]:
    """All strings within a value, in its order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)
