"""The columns that the published rules need, measured on each document in one pass.

Of ratios both parts are stored, as integers, so that a decision is exact and its threshold can be moved later.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Self

import numpy as np
import xxhash

from hornbook.kernels.compiled import borrowed, compiled
from hornbook.kernels.packed import hash_words, pack
from hornbook.text.config.rules import STOP_WORDS
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.quality import line_counts, word_counts
from hornbook.text.refinery.quality.line_counts import count_lines, count_parts
from hornbook.text.refinery.quality.word_counts import count_words
from hornbook.text.refinery.step import Columns, Measurer
from hornbook.text.refinery.words.characters import kinds, sentence_terminals, table_of
from hornbook.text.refinery.words.words import DEFINITIONS, find_words, most_words

COLUMNS = (*line_counts.COLUMNS, *line_counts.PART_COLUMNS, *word_counts.COLUMNS)
"""In the order in which the kernels write them."""
_PARTS, _WORDS = len(line_counts.COLUMNS), len(line_counts.COLUMNS) + len(line_counts.PART_COLUMNS)


@dataclass(frozen=True, slots=True)
class Settings:
    """What the columns depend on beside the text."""

    words: str = "whitespace"
    """What a word is (`words.py`)."""
    stop_words: tuple[tuple[str, ...], ...] = (STOP_WORDS,)
    """Stop words of each language."""
    terminals: str = ""
    """Characters that end a sentence; "" for those of all scripts."""
    short_line: int = 30
    """Most characters of a short line."""

    @classmethod
    def of(cls, config: Any) -> Self:
        """The settings that a step's configuration has, the others at their defaults."""
        given = {name: getattr(config, name) for name in cls.__slots__ if hasattr(config, name)}
        if "stop_words" in given:
            given["stop_words"] = tuple(tuple(words) for words in given["stop_words"].values())
        return cls(**given)

    @property
    def label(self) -> str:
        """Prefix of the columns: `statistics`, and what differs from the defaults."""
        plain = replace(self, words="whitespace")
        words = "" if self.words == plain.words else f"_{self.words}"
        other = "" if plain == Settings() else f"_{xxhash.xxh32_hexdigest(repr(asdict(plain)).encode())}"
        return f"statistics{words}{other}"


class Statistics(Measurer):
    """The measurer that all rules share; steps with the same settings share one pass."""

    columns = dict.fromkeys(COLUMNS, "int64")

    def __init__(self, settings: Settings) -> None:
        self.name, self._settings = settings.label, settings

    def measure(self, documents: Sequence[Document]) -> Columns:
        data, bounds = pack(document.text for document in documents)
        rows = np.zeros((len(documents), len(COLUMNS)), np.int64)
        starts, ends = np.empty((2, most_words(int(np.diff(bounds).max(initial=0)))), np.int64)
        settings = self._settings
        terminal, short = table_of(settings.terminals or sentence_terminals()), settings.short_line
        words, count = DEFINITIONS.index(settings.words), len(settings.stop_words)
        keys, languages = _stop_table(settings.stop_words)
        _measure(data, bounds, kinds(), terminal, short, words, keys, languages, count, starts, ends, rows)
        return {name: rows[:, place] for place, name in enumerate(COLUMNS)}


@cache
def _stop_table(languages: tuple[tuple[str, ...], ...]) -> tuple[np.ndarray, np.ndarray]:
    """Sorted hashes of all stop words (uint64), and for each the bits of its languages (uint64)."""
    masks: dict[str, int] = {}
    for number, words in enumerate(languages):
        for word in words:
            masks[word] = masks.get(word, 0) | 1 << number
    data, bounds = pack(masks)
    keys = hash_words(data, bounds[:-1], bounds[1:] - 1)
    order = np.argsort(keys)
    return keys[order], np.array(list(masks.values()), np.uint64)[order]


@compiled
def _measure(data, bounds, kind, terminal, short, definition, stop_keys, stop_languages, languages, starts, ends, rows):
    """Fill rows [documents, columns] for the packed documents; `starts` and `ends` are buffers for words or lines."""
    data, kind, terminal, rows = borrowed(data), borrowed(kind), borrowed(terminal), borrowed(rows)
    stop_keys, stop_languages = borrowed(stop_keys), borrowed(stop_languages)
    starts, ends = borrowed(starts), borrowed(ends)
    for i in range(len(rows)):
        begin, end, row = bounds[i], bounds[i + 1] - 1, rows[i]
        count_lines(data, begin, end, kind, terminal, row[:_PARTS])
        count_parts(data, begin, end, kind, terminal, short, starts, ends, row[_PARTS:_WORDS])
        count = find_words(data, begin, end, definition, kind, starts, ends)
        count_words(data, starts, ends, count, kind, stop_keys, stop_languages, languages, row[_WORDS:])
