"""Words of lists that a user gives: how many of each category a document has, as a share of its words.

Scripts without blanks show no ends of words, so a term counts wherever its characters stand, within other words too:
these are what exceptions are for.
"""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np

from hornbook.errors import UsageError
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import Columns, Decision

LANGUAGE = "language.language"
"""The column of documents' languages."""
CATEGORIES = ("hate", "violence", "sexual", "self_harm")
_WITHOUT_BLANKS = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
_SEGMENT = re.compile(rf"[{_WITHOUT_BLANKS}]|[^\W{_WITHOUT_BLANKS}]+(?:['\u2019][^\W{_WITHOUT_BLANKS}]+)*")


def words_of(text: str) -> list[str]:
    """Folded words; in scripts without blanks, each character is one, so that terms are found anywhere in them."""
    return _SEGMENT.findall(unicodedata.normalize("NFKC", text).casefold())


class Terms:
    """Terms of one category, or exceptions, by their first word."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._rests: dict[str, list[tuple[str, ...]]] = {}
        for path in paths:
            for term in _read(path):
                first, *rest = words_of(term)
                self._rests.setdefault(first, []).append(tuple(rest))
        for rests in self._rests.values():
            rests.sort(key=len, reverse=True)

    def _end(self, words: list[str], place: int) -> int:
        """Where the longest term that begins at a place ends; the place itself where none does."""
        for rest in self._rests.get(words[place], ()):
            end = place + 1 + len(rest)
            if tuple(words[place + 1 : end]) == rest:
                return end
        return place

    def ends(self, words: list[str]) -> list[int]:
        """For each place, the last end of a term that begins there or before."""
        return list(accumulate((self._end(words, place) for place in range(len(words))), max))

    def count(self, words: list[str], spared: Sequence[int]) -> tuple[int, int]:
        """(terms, words of them) found, the longest at each place, none over another and none within an exception.

        `spared`: the `ends` of exceptions; without these, each place itself.
        """
        terms = covered = at = 0
        for place, word in enumerate(words):
            if place < at or word not in self._rests:
                continue
            end = self._end(words, place)
            if end > spared[place]:
                terms, covered, at = terms + 1, covered + end - place, end
        return terms, covered


def _read(path: str) -> list[str]:
    """Terms, a line each. Errors: UsageError where there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read as a list of terms ({error}): give a UTF-8 file, a term a line"
        ) from error
    terms = [line.strip() for line in lines if words_of(line)]
    if not terms:
        raise UsageError(f"{path} holds no term: a list has one a line")
    return terms


def _by_column(config: Any) -> dict[str, list[str]]:
    """Column -> its lists: CATEGORY for any language, LANGUAGE_CATEGORY for one."""
    found: dict[str, list[str]] = {}
    for category, paths in config.lists.items():
        for path in paths:
            languages = dict.fromkeys(config.languages.get(path, ()))
            for column in [f"{each}_{category}" for each in languages] or [category]:
                found.setdefault(column, []).append(path)
    return found


class Harmful(Decision):
    """Drops documents in which a category has more than its share of words."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._terms = {column: Terms(paths) for column, paths in _by_column(config).items()}
        self._exceptions = Terms(config.exceptions) if config.exceptions else None
        self._categories = tuple(each for each in CATEGORIES if each in config.lists)
        self._languages = tuple(dict.fromkeys(each for found in config.languages.values() for each in found))
        self.reasons = tuple(f"harmful: {each.replace('_', '-')}" for each in self._categories)
        self.columns = {"words": "int64", **{f"{each}{end}": "int64" for each in self._terms for end in ("", "_words")}}
        if self._languages:
            self.needs = (*self.needs, LANGUAGE)

    def measure(self, documents: Sequence[Document]) -> Columns:
        """The number of words; the terms of each list, and the number of words in them."""
        found = {name: np.zeros(len(documents), dtype=np.int64) for name in self.columns}
        for row, document in enumerate(documents):
            words = words_of(document.text)
            spared = self._exceptions.ends(words) if self._exceptions else range(len(words))
            found["words"][row] = len(words)
            for column, terms in self._terms.items():
                found[column][row], found[f"{column}_words"][row] = terms.count(words, spared)
        return found

    def check(self, columns: Mapping[str, str]) -> None:
        """Raises UsageError where lists are for languages, and no step measures these."""
        if self._languages and LANGUAGE not in columns:
            raise UsageError(
                f"step {self.name!r} has lists for {', '.join(self._languages)}, but no step measures languages: "
                'add { kind = "language" }, or leave out `languages`'
            )

    def decide(self, columns: Columns) -> np.ndarray:
        """The first category that is above."""
        words = np.maximum(columns[f"{self.name}.words"], 1)
        reasons = np.zeros(len(words), dtype=np.uint8)
        for number, category in reversed(list(enumerate(self._categories, 1))):
            share = self._sum(columns, category, "_words") / words
            hits = self._sum(columns, category, "")
            reasons[(share > self.config.max_share) & (hits >= self.config.min_hits)] = number
        return reasons

    def _sum(self, columns: Columns, category: str, ending: str) -> np.ndarray:
        """Of the lists for any language and those for a document's own; the most of any where that is not known."""
        found = np.zeros(len(columns[f"{self.name}.words"]), dtype=np.int64)
        for language in self._languages:
            count = columns.get(f"{self.name}.{language}_{category}{ending}")
            if count is not None:
                spoken = columns[LANGUAGE]
                found = np.where((spoken == language) | (spoken == ""), np.maximum(found, count), found)
        return found + columns.get(f"{self.name}.{category}{ending}", 0)
