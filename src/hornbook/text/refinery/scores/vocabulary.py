"""The share of the vocabulary that the kept documents cover, from a sample of words stored for each document.

A word is in the sample if its hash is small, so it is stored wherever it occurs (Gibbons and Tirthapura 2001), and the
samples of any set of documents can be joined. The covered share of the sample's words estimates that of all words; the
occurrences of uncovered words, times `one_in`, estimate their share of the text (Horvitz and Thompson 1952).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
import pyarrow as pa

from hornbook.kernels.compiled import compiled, mix
from hornbook.text.ingest.document import Document
from hornbook.text.refinery.step import Columns, Decision
from hornbook.text.refinery.words.words import hashed_words

COUNT, SAMPLE = "words", "word_sample"


@compiled
def _sampled(hashes, texts, bound, numbers, firsts):
    """Write the numbers of the words whose hashes are below the bound, text by text; returns how many."""
    count = 0
    for text in range(len(texts) - 1):
        begin = count
        for i in range(texts[text], texts[text + 1]):
            scrambled = mix(hashes[i])
            if scrambled >> np.uint64(32) < bound:
                numbers[count] = np.uint32(scrambled & np.uint64(0xFFFFFFFF))
                count += 1
        numbers[begin:count].sort()
        firsts[text + 1] = count
    return count


class Vocabulary(Decision):
    """Measures the number of words, and stores each occurrence of a word of the sample; keeps all documents."""

    columns = {COUNT: "int64", SAMPLE: "list"}  # noqa: RUF012 - read only
    fixed = ("one_in",)

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.needs = (f"{self.name}.{COUNT}",)

    def measure(self, documents: Sequence[Document]) -> Columns:
        """Of each document the number of words, and the sample's words as numbers, sorted, with repeats."""
        words = hashed_words((document.text for document in documents), self.config.words, plain=True)
        numbers, firsts = np.empty(len(words.hashes), np.uint32), np.zeros(len(words.firsts), np.int32)
        count = _sampled(words.hashes, words.firsts, np.uint64((1 << 32) // self.config.one_in), numbers, firsts)
        lists: Any = pa.ListArray.from_arrays(pa.array(firsts), pa.array(numbers[:count]))
        return {COUNT: np.diff(words.firsts), SAMPLE: lists}


@dataclass(frozen=True, slots=True)
class Coverage:
    """The part of the vocabulary that the kept documents cover."""

    vocabulary: float
    """Share of the different words that occur in a kept document."""
    vocabulary_error: float
    """Half of the 95 % interval."""
    running: float
    """Share of all occurrences of words whose word occurs in a kept document."""
    running_error: float


class SampledWords:
    """The samples of all documents; of a large corpus a part of the sample, so that a query takes milliseconds."""

    def __init__(self, one_in: int, most: int = 1 << 24) -> None:
        self._one_in, self._most, self._bound = one_in, most, 1 << 32
        self._total, self._size = 0, 0
        self._parts: list[tuple[np.ndarray, np.ndarray]] = []
        """Numbers of words, and how many of them each document has."""

    def add(self, counts: np.ndarray, lists: pa.ListArray) -> None:
        """Add the columns of some documents."""
        offsets = lists.offsets.to_numpy()
        self._total += int(counts.sum())
        self._parts.append(self._thinned(lists.values.to_numpy()[offsets[0] : offsets[-1]], np.diff(offsets)))
        self._size += len(self._parts[-1][0])
        while self._size > self._most:
            self._one_in, self._bound = 2 * self._one_in, self._bound // 2
            self._parts = [self._thinned(*part) for part in self._parts]
            self._size = sum(len(numbers) for numbers, _ in self._parts)

    def _thinned(self, numbers: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Without the words whose numbers reach the bound; numbers are independent of the choice of the sample."""
        stays = numbers < self._bound
        ends = np.concatenate([[0], np.cumsum(stays)])[np.cumsum(sizes)]
        return numbers[stays], np.diff(ends, prepend=0)

    @cached_property
    def _joined(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(index of each occurrence's word, number of occurrences in each document, occurrences of each word)."""
        numbers, sizes = (np.concatenate([part[n] for part in self._parts]) for n in (0, 1))
        _, places, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        return places, sizes, counts

    def coverage(self, kept: np.ndarray) -> Coverage:
        """Coverage by the documents in the mask, bool [rows]; exact for none or all of them."""
        if kept.all() or not kept.any():
            return Coverage(float(kept.all()), 0.0, float(kept.all()), 0.0)
        places, sizes, counts = self._joined
        stays = np.zeros(len(counts), bool)
        stays[places[np.repeat(kept, sizes)]] = True
        lost = counts[~stays].astype(np.float64)
        share, error = _share(int(stays.sum()), len(stays), self._one_in)
        total = max(self._total, 1)
        text = min(self._one_in * float(lost.sum()) / total, 1.0)
        spread = sqrt((1 - 1 / self._one_in) * float((lost**2).sum()))
        return Coverage(share, error, 1 - text, min(2 * self._one_in * spread / total, 1.0))


def _share(part: int, whole: int, one_in: int) -> tuple[float, float]:
    """A share of the sample, and two standard errors with two pseudo-counts of each kind (Agresti and Coull 1998)."""
    if one_in == 1:
        return part / max(whole, 1), 0.0
    guess = (part + 2) / (whole + 4)
    return part / max(whole, 1), min(2 * sqrt(guess * (1 - guess) / (whole + 4)), 1.0)
