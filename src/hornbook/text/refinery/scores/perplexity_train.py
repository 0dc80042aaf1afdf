"""Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999, section 3 and equation 26) over bytes.

    p(b | h) = max(a(hb) - D(a(hb)), 0) / sum over c of a(hc) + g(h) p(b | h without its first byte)

with adjusted counts a and discounts D for counts of 1, 2, and 3 or more. g(h) is the mass that the kept n-grams leave,
so that probabilities sum to 1 whichever n-grams are left out; without an n-gram of one byte it is 1/256.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from hornbook.errors import UsageError
from hornbook.text.refinery.scores.perplexity_counts import (
    MOST_ORDER,
    NgramCounter,
    NgramCounts,
    last_bytes,
    run_of_feeds,
)
from hornbook.text.refinery.scores.perplexity_model import LanguageModel

PERCENTILES = (5, 33, 50, 67, 95)
_FEWEST = 20
"""Fewest documents: one is held out."""
_HELD_OUT = 20
"""Every twentieth document is held out for evaluation."""
_BATCH_LENGTH = 8 * 2**20
_NO_ESTIMATE = (0.5, 1.0, 1.5)
"""Discounts where counts of counts give no estimate, as in text with few different n-grams."""


@dataclass(frozen=True, slots=True)
class PerplexityReport:
    """The training data of a model, and its results on the documents held out."""

    documents: int
    bytes: int
    """Of the training data."""
    held_out: int
    """Documents."""
    ngrams: int
    least: int
    """N-grams of three and more bytes that occur less often are left out."""
    percentiles: dict[int, float]
    """Percentile -> bits per byte of the documents held out."""


class Sample:
    """A uniform sample of different texts, of at most `most_bytes` in all, drawn by their hashes."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes, self._bound = most_bytes, 0, 1 << 64
        self._texts: dict[int, str] = {}
        self._sizes: dict[int, int] = {}

    def add(self, text: str) -> None:
        """Add a text, if its hash is in the sample."""
        data = text.encode()
        key = xxhash.xxh3_64_intdigest(data)
        if not data or key >= self._bound or key in self._texts:
            return
        self._texts[key], self._sizes[key] = text, len(data)
        self._bytes += len(data)
        while self._bytes > self._most:
            self._halve()

    def _halve(self) -> None:
        self._bound //= 2
        for key in [key for key in self._texts if key >= self._bound]:
            del self._texts[key]
            self._bytes -= self._sizes.pop(key)

    def texts(self) -> list[str]:
        """The sample in the order of the hashes, which does not depend on the order of adding."""
        return [self._texts[key] for key in sorted(self._texts)]


def train(
    texts: Iterable[str], order: int, most_bytes: int, most_ngrams: int
) -> tuple[LanguageModel, PerplexityReport]:
    """Train on texts; equal ones count once. Raises UsageError where they are too few."""
    if not 2 <= order <= MOST_ORDER:
        raise UsageError(f"an order of {order}: it is from 2 to {MOST_ORDER} bytes")
    sample = Sample(most_bytes)
    for text in texts:
        sample.add(text)
    drawn = sample.texts()
    if len(drawn) < _FEWEST:
        raise UsageError(f"{len(drawn)} different documents: at least {_FEWEST} are needed, better megabytes of text")
    learned = [text for n, text in enumerate(drawn) if n % _HELD_OUT]
    counter = NgramCounter(order)
    for batch in _batches(learned):
        counter.add(batch)
    levels = counter.levels()
    least = _least(levels, most_ngrams)
    model = estimate(levels, least)
    held_out = model.bits_per_byte(drawn[::_HELD_OUT])
    found = {share: float(np.percentile(held_out, share)) for share in PERCENTILES}
    size = int(levels[0].raw.sum())
    return model, PerplexityReport(len(learned), size, len(held_out), len(model.bits) - 1, least, found)


def _batches(texts: Sequence[str]) -> Iterator[list[str]]:
    batch, size = [], 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _BATCH_LENGTH:
            yield batch
            batch, size = [], 0
    yield batch


def _least(levels: Sequence[NgramCounts], most: int) -> int:
    """Least count of an n-gram so that at most `most` are kept; all of one and two bytes are."""
    raw = np.concatenate([level.raw for level in levels[2:]] or [np.zeros(0, np.int64)])
    room = max(most - 256 - len(levels[1].keys) - len(levels), 0)
    if len(raw) <= room:
        return 1
    place = len(raw) - room - 1
    return int(np.partition(raw, place)[place]) + 1


def discounts(adjusted: np.ndarray) -> np.ndarray:
    """float64 [4]: D(0), D(1), D(2), D(3 and more) of Chen and Goodman's equation 26."""
    ones, twos, threes, fours = (int((adjusted == count).sum()) for count in (1, 2, 3, 4))
    found = (0.0, 0.0, 0.0)
    if ones and twos and threes:
        part = ones / (ones + 2 * twos)
        found = (1 - 2 * part * twos / ones, 2 - 3 * part * threes / twos, 3 - 4 * part * fours / threes)
    sound = all(0 < discount < count for count, discount in enumerate(found, start=1))
    return np.array([0.0, *(found if sound else _NO_ESTIMATE)])


def estimate(levels: Sequence[NgramCounts], least: int = 1) -> LanguageModel:
    """The model of counted n-grams; of those of three and more bytes, only what occurs `least` times."""
    keys, below = np.zeros(1, np.uint64), np.full(1, 1 / 256)  # the n-gram of no bytes
    parts = [(keys, np.ones(1), np.zeros(1, np.int64))]
    rests = []
    for order, level in enumerate(levels, start=1):
        kept = _kept(level, order, order == len(levels), least)
        parents = np.searchsorted(keys, kept.keys >> np.uint64(8))
        ends = np.searchsorted(keys, last_bytes(kept.keys, order - 1))
        totals = _totals(level, keys)
        mass = np.maximum(kept.adjusted - discounts(level.adjusted)[np.minimum(kept.adjusted, 3)], 0)
        rest = 1 - np.bincount(parents, mass, len(keys)) / totals
        below = mass / totals[parents] + rest[parents] * below[ends]
        keys = kept.keys
        parts.append((keys, below, ends))
        rests.append(rest)
    return _model(parts, rests)


def _kept(level: NgramCounts, order: int, highest: bool, least: int) -> NgramCounts:
    """The n-grams of one order in the model, among them all bytes and the start of every text, even with count 0."""
    chosen = np.flatnonzero((level.raw >= least) | (order < 3))
    needed = np.arange(256, dtype=np.uint64) if order == 1 else np.array([run_of_feeds(order)] * (not highest))
    keys = np.unique(np.concatenate([level.keys[chosen], needed.astype(np.uint64)]))
    place = np.minimum(np.searchsorted(level.keys, keys), len(level.keys) - 1)
    there = level.keys[place] == keys
    return NgramCounts(keys, np.where(there, level.raw[place], 0), np.where(there, level.adjusted[place], 0))


def _totals(level: NgramCounts, contexts: np.ndarray) -> np.ndarray:
    """Sum of the adjusted counts after each context, of n-grams left out too; 1 where nothing followed it."""
    before = level.keys >> np.uint64(8)
    first = np.flatnonzero(np.concatenate([[True], before[1:] != before[:-1]]))
    place = np.minimum(np.searchsorted(before[first], contexts), len(first) - 1)
    there = before[first][place] == contexts
    return np.where(there, np.add.reduceat(level.adjusted, first)[place], 1)


def _model(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], rests: Sequence[np.ndarray]) -> LanguageModel:
    """Number the n-grams by order and bytes: those that extend one context are neighbours."""
    firsts = np.cumsum([0, *(len(keys) for keys, _, _ in parts)])
    pairs = zip(parts, parts[1:], firsts[:-2], strict=False)
    parents = np.concatenate([np.searchsorted(short[0], keys[0] >> np.uint64(8)) + at for short, keys, at in pairs])
    ends = np.concatenate([[0], *(part[2] + at for part, at in zip(parts[1:], firsts[:-2], strict=True))])
    keys, probability = (np.concatenate([part[n] for part in parts]) for n in (0, 1))
    return LanguageModel(
        (keys & np.uint64(255)).astype(np.uint8),
        np.negative(np.log2(probability)).astype(np.float32),
        np.negative(np.log2(np.concatenate(rests))).astype(np.float32),
        (1 + np.searchsorted(parents, np.arange(firsts[-2] + 1))).astype(np.uint32),
        ends.astype(np.uint32),
        len(rests),
    )
