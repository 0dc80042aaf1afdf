"""Terms of a user's lists: how many of each category a document has, as a share of its words.

Scripts without spaces do not mark the ends of words, so a term counts wherever its characters occur, within other
words too; exceptions are for those words.
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
"""Column of the languages of documents."""
CATEGORIES = ("hate", "violence", "sexual", "self_harm")
_WITHOUT_SPACES = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
_SEGMENT = re.compile(rf"[{_WITHOUT_SPACES}]|[^\W{_WITHOUT_SPACES}]+(?:['\u2019][^\W{_WITHOUT_SPACES}]+)*")


def words_of(text: str) -> list[str]:
    """Case-folded words; in scripts without spaces each character is a word, so that terms are found anywhere."""
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

    def _end(self, words: list[str], start: int) -> int:
        """End of the longest term that starts at `start`; `start` where none does."""
        for rest in self._rests.get(words[start], ()):
            end = start + 1 + len(rest)
            if tuple(words[start + 1 : end]) == rest:
                return end
        return start

    def ends(self, words: list[str]) -> list[int]:
        """For each word, the last end of a term that starts there or before."""
        return list(accumulate((self._end(words, start) for start in range(len(words))), max))

    def count(self, words: list[str], spared: Sequence[int]) -> tuple[int, int]:
        """(terms, words in them): the longest terms, without overlaps, none of them within an exception.

        `spared`: the `ends` of exceptions; without exceptions, the index of each word.
        """
        terms = covered = at = 0
        for start, word in enumerate(words):
            if start < at or word not in self._rests:
                continue
            end = self._end(words, start)
            if end > spared[start]:
                terms, covered, at = terms + 1, covered + end - start, end
        return terms, covered


def _read(path: str) -> list[str]:
    """Terms, one per line. Raises UsageError where there is none."""
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path} cannot be read as a list of terms ({error}): give a UTF-8 file with a term per line"
        ) from error
    terms = [line.strip() for line in lines if words_of(line)]
    if not terms:
        raise UsageError(f"{path} holds no term: a list has one per line")
    return terms


def _by_column(config: Any) -> dict[str, list[str]]:
    """Column -> its lists: CATEGORY for all languages, LANGUAGE_CATEGORY for one."""
    found: dict[str, list[str]] = {}
    for category, paths in config.lists.items():
        for path in paths:
            languages = dict.fromkeys(config.languages.get(path, ()))
            for column in [f"{each}_{category}" for each in languages] or [category]:
                found.setdefault(column, []).append(path)
    return found


class Harmful(Decision):
    """Drops documents with too large a share of words of one category."""

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
        """Number of the first category above its limit."""
        words = np.maximum(columns[f"{self.name}.words"], 1)
        reasons = np.zeros(len(words), dtype=np.uint8)
        for number, category in reversed(list(enumerate(self._categories, 1))):
            share = self._sum(columns, category, "_words") / words
            hits = self._sum(columns, category, "")
            reasons[(share > self.config.max_share) & (hits >= self.config.min_hits)] = number
        return reasons

    def _sum(self, columns: Columns, category: str, ending: str) -> np.ndarray:
        """Sum over the lists for all languages and for the document's (the most of any where that is unknown)."""
        found = np.zeros(len(columns[f"{self.name}.words"]), dtype=np.int64)
        for language in self._languages:
            count = columns.get(f"{self.name}.{language}_{category}{ending}")
            if count is not None:
                spoken = columns[LANGUAGE]
                found = np.where((spoken == language) | (spoken == ""), np.maximum(found, count), found)
        return found + columns.get(f"{self.name}.{category}{ending}", 0)
