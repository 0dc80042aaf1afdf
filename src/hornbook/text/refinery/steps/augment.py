"""Edits that change text on purpose: counterfactual swaps and random changes of words.

The random numbers depend on a hash of the document, not on the order of documents or on workers.
"""

import random
import re
import tomllib
from pathlib import Path
from typing import Any

import xxhash

from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import Edit

PAIRS: list[tuple[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["pairs"]
_AMBIGUOUS = {"him": ("her", "her"), "his": ("her", "hers"), "her": ("his", "him"), "hers": ("his", "his")}
"""Word -> its counterpart as a possessive within a phrase, and before what ends a phrase."""
_WORD = re.compile(r"[^\W\d_]+")
_OBJECT_ENDS = re.compile(
    r"\s{0,2}(?:[^\w\s]|$|(?:and|or|but|to|in|on|at|for|with|from|by|as|when|that|the|a|an|is|was|had)\b)"
)
_LEAVE_OUT, _REPEAT, _EXCHANGE = range(3)


def _generator(document: Document, seed: int) -> random.Random:
    return random.Random(xxhash.xxh3_64_intdigest(document.text.encode("utf-8"), seed=seed))


class Swap(Edit):
    """Swaps words for their counterparts, in lower case, Title case and CAPITALS."""

    counters = ("words",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        pairs = [(one.casefold(), other.casefold()) for one, other in config.pairs or PAIRS]
        self._other = dict(pairs) | {other: one for one, other in pairs}
        self._english = not config.pairs

    def edit(self, document: Document) -> tuple[str, tuple[int, ...]]:
        if _generator(document, self.config.seed).random() >= self.config.share:
            return document.text, (0,)
        count = 0

        def swapped(found: re.Match[str]) -> str:
            nonlocal count
            word = found.group()
            other = self._counterpart(word.casefold(), found)
            count += other is not None
            return word if other is None else _in_case_of(word, other)

        return _WORD.sub(swapped, document.text), (count,)

    def _counterpart(self, word: str, found: re.Match[str]) -> str | None:
        if self._english and word in _AMBIGUOUS:
            return _AMBIGUOUS[word][_OBJECT_ENDS.match(found.string, found.end()) is not None]
        return self._other.get(word)


def _in_case_of(word: str, other: str) -> str:
    if word.isupper() and len(word) > 1:
        return other.upper()
    return other.capitalize() if word[0].isupper() else other


class WordEdits(Edit):
    """Leaves out words, repeats them, or exchanges them with the next one of their line."""

    counters = ("left_out", "repeated", "exchanged")

    def edit(self, document: Document) -> tuple[str, tuple[int, ...]]:
        draw = _generator(document, self.config.seed)
        counts = [0, 0, 0]
        if draw.random() >= self.config.share:
            return document.text, tuple(counts)
        lines = [self._line(line, draw, counts) for line in document.text.split("\n")]
        return "\n".join(lines), tuple(counts)

    def _line(self, line: str, draw: random.Random, counts: list[int]) -> str:
        words, kept, index = line.split(" "), [], 0
        while index < len(words):
            word = words[index]
            what = draw.randrange(3) if word and draw.random() < self.config.rate else None
            if what == _EXCHANGE and index + 1 == len(words):
                what = None
            if what is not None:
                counts[what] += 1
            if what == _EXCHANGE:
                index += 1
                kept.append(words[index])
            if what != _LEAVE_OUT:
                kept += [word] * (2 if what == _REPEAT else 1)
            index += 1
        return " ".join(kept)
