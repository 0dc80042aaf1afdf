"""Interpolated modified Kneser-Ney smoothing (Chen and Goodman 1999, section 3 and equation 26) over bytes.

    p(b | h) = max(a(hb) - D(a(hb)), 0) / sum over c of a(hc) + g(h) p(b | h without its first byte)

with adjusted counts a and discounts D for counts of 1, 2, and 3 or more. g(h) is the mass that the kept n-grams leave,
so that probabilities sum to 1 whichever n-grams are left out; without an n-gram of one byte it is 1/256.

An n-gram of up to eight bytes is one 64-bit number, so there are no collisions. A text is read as if line feeds
preceded it. Every n-gram of a lower order is then a suffix of one of the highest order, and a prefix of one unless it
is all line feeds.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import xxhash

from hornbook.errors import UsageError
from hornbook.kernels.compiled import compiled
from hornbook.kernels.packed import pack
from hornbook.text.refinery.scores.perplexity_model import FEED, MOST_ORDER, LanguageModel
from hornbook.text.store import batched

PERCENTILES = (5, 33, 50, 67, 95)
_FEWEST = 20
"""Fewest documents: one is held out."""
_HELD_OUT = 20
"""Every twentieth document is held out for evaluation."""
_BATCH_LENGTH = 8 * 2**20
_NO_ESTIMATE = (0.5, 1.0, 1.5)
"""Discounts where counts of counts give no estimate, as in text with few different n-grams."""


@dataclass(frozen=True, slots=True, eq=False)
class NgramCounts:
    """All n-grams of one order."""

    keys: np.ndarray
    """uint64 [n-grams], sorted: their bytes, the first one highest."""
    raw: np.ndarray
    """int64: how often each occurs."""
    adjusted: np.ndarray
    """int64: as `raw` at the highest order, else the number of different bytes before it (Kneser and Ney 1995)."""


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


def sample(texts: Iterable[str], most_bytes: int) -> list[str]:
    """A uniform sample of different texts, of at most `most_bytes` in all, drawn by their hashes and in their order.

    It does not depend on the order of `texts`.
    """
    drawn: dict[int, str] = {}
    size, bound = 0, 1 << 64
    for text in texts:
        data = text.encode()
        key = xxhash.xxh3_64_intdigest(data)
        if not data or key >= bound or key in drawn:
            continue
        drawn[key] = text
        size += len(data)
        while size > most_bytes:
            bound //= 2
            for other in [each for each in drawn if each >= bound]:
                size -= len(drawn.pop(other).encode())
    return [drawn[key] for key in sorted(drawn)]


def train(
    texts: Iterable[str], order: int, most_bytes: int, most_ngrams: int
) -> tuple[LanguageModel, PerplexityReport]:
    """Train on texts; equal ones count once. Raises UsageError where they are too few."""
    if not 2 <= order <= MOST_ORDER:
        raise UsageError(f"an order of {order}: it is from 2 to {MOST_ORDER} bytes")
    drawn = sample(texts, most_bytes)
    if len(drawn) < _FEWEST:
        raise UsageError(f"{len(drawn)} different documents: at least {_FEWEST} are needed, better megabytes of text")
    learned = [text for n, text in enumerate(drawn) if n % _HELD_OUT]
    levels = count_ngrams(batched(learned, len, _BATCH_LENGTH), order)
    least = _least(levels, most_ngrams)
    model = estimate(levels, least)
    held_out = model.bits_per_byte(drawn[::_HELD_OUT])
    found = {share: float(np.percentile(held_out, share)) for share in PERCENTILES}
    size = int(levels[0].raw.sum())
    return model, PerplexityReport(len(learned), size, len(held_out), len(model.bits) - 1, least, found)


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


def run_of_feeds(order: int) -> np.uint64:
    """The n-gram that every text begins with."""
    return np.uint64(int.from_bytes(bytes([FEED]) * order))


def last_bytes(keys: np.ndarray, count: int) -> np.ndarray:
    """The n-grams of the last `count` bytes of each."""
    return keys & np.uint64((1 << 8 * count) - 1)


def count_ngrams(batches: Iterable[Sequence[str]], order: int) -> list[NgramCounts]:
    """Counts of the n-grams of all orders, from 1 to `order`; memory grows with the number of different n-grams."""
    parts: list[tuple[np.ndarray, np.ndarray]] = []  # sorted keys and their counts, each more than twice the next
    for texts in batches:
        data, bounds = pack(texts)
        keys = np.empty(int(bounds[-1]) - len(texts), np.uint64)
        _windows(data, bounds, run_of_feeds(8), np.uint64((1 << 8 * order) - 1), keys)
        parts.append(np.unique(keys, return_counts=True))
        while len(parts) > 1 and 2 * len(parts[-1][0]) >= len(parts[-2][0]):
            _merge_last(parts)
    while len(parts) > 1:
        _merge_last(parts)
    keys, raw = parts[0]
    found = [NgramCounts(keys, raw, raw)]
    for shorter in range(order - 1, 0, -1):
        found.append(NgramCounts(*_summed(last_bytes(found[-1].keys, shorter), found[-1].raw)))
    return found[::-1]


def _merge_last(parts: list[tuple[np.ndarray, np.ndarray]]) -> None:
    keys, counts = (np.concatenate(arrays) for arrays in zip(*parts[-2:], strict=True))
    parts[-2:] = [_summed(keys, counts)[:2]]


def _summed(keys: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(sorted keys, each once; sum of its counts; number of its counts). Fast where `keys` are a few sorted runs."""
    order = np.argsort(keys, kind="stable")  # this kind of sort merges runs
    keys = keys[order]
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    return keys[first], np.add.reduceat(counts[order], first), np.diff(first, append=len(keys))


@compiled
def _windows(data, bounds, feeds, mask, keys):
    """The n-gram that ends at each byte of each text."""
    place = 0
    for text in range(len(bounds) - 1):
        key = feeds
        for i in range(bounds[text], bounds[text + 1] - 1):
            key = key << np.uint64(8) | np.uint64(data[i])
            keys[place] = key & mask
            place += 1
