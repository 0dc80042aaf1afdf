"""The loader: global batches in a fixed order, from any point on.

A batch is a pure function of (data, config, sequence, seed, clock, skipped ranges). The loader's state is two things:
the clock, which counts samples consumed and is stored in a checkpoint, and the skipped ranges: half-open ranges of
positions that no sample is taken from, which are stored in the ledger and survive a rewind of the clock.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64

from hornbook.data.batch import Batch, GlobalBatch, pinned
from hornbook.data.config.data import DataConfig
from hornbook.data.corpus import open_corpus
from hornbook.data.loader.global_index import GlobalIndex
from hornbook.data.loader.prefetch import Prefetcher

SkippedRanges = tuple[tuple[int, int], ...]
"""Half-open ranges of positions: sorted, disjoint, none empty."""


class _Request(NamedTuple):
    """Everything that a global batch depends on besides the index."""

    clock: int
    num_samples: int
    micro_batch: int
    skipped: SkippedRanges
    rank: int
    world: int
    pinned: bool


class Loader:
    """Deterministic global batches over the training split; `build_loader` makes one."""

    def __init__(self, index: GlobalIndex, *, micro_batch: int, prefetch: bool = True) -> None:
        self.index, self.corpus = index, index.corpus
        self.micro_batch = micro_batch
        """Rows of a microbatch from the next call on."""
        self.clock = 0
        """Samples consumed so far."""
        self.skipped: SkippedRanges = ()
        """Positions that no sample is taken from."""
        self.pinned = False
        """Whether microbatches are made in memory that a GPU reads by itself."""

        def make(request: _Request) -> GlobalBatch:
            positions = positions_of(request.clock, request.num_samples, request.skipped)
            batch = index.batch(positions, request.micro_batch, request.rank, request.world)
            return pinned(batch) if request.pinned else batch

        self._make = make
        self._prefetcher = Prefetcher(make) if prefetch else None

    def seek(self, clock: int) -> None:
        """Continue as if `clock` samples had been consumed; takes the same time for any clock."""
        if clock < 0:
            raise ValueError(f"the clock counts samples and is not negative, not {clock}")
        self.clock = clock

    def skip(self, skipped: Iterable[tuple[int, int]]) -> None:
        """Never again take samples from these half-open ranges of positions, nor from those skipped before.

        The clock stays. After a rewind to before a range, the samples up to it come as they did, then those after it.
        """
        self.skipped = merge_ranges([*self.skipped, *skipped])

    def take(self, num_samples: int, rank: int = 0, world: int = 1, following: int | None = None) -> GlobalBatch:
        """The next `num_samples` samples and, of their microbatches, those of this rank; moves the clock.

        `following` samples are made ahead for the next call, by default as many again; a wrong guess costs time only.
        Raises IntegrityError where a shard is damaged; the clock has not moved then.
        """
        if num_samples < 1:
            raise ValueError(f"a global batch has at least one sample, not {num_samples}")
        request = _Request(self.clock, num_samples, self.micro_batch, self.skipped, rank, world, self.pinned)
        if self._prefetcher is None:
            batch = self._make(request)
        else:
            ahead = request._replace(clock=self.clock + num_samples, num_samples=following or num_samples)
            batch = self._prefetcher.get(request, ahead)
        self.clock += num_samples
        return batch

    def peek(self, num_samples: int) -> Batch:
        """The next samples as one microbatch, the same on every rank. The clock and what is made ahead stay."""
        request = _Request(self.clock, num_samples, num_samples, self.skipped, 0, 1, self.pinned)
        return self._make(request).batches[0]

    def close(self) -> None:
        """End the prefetching thread; `take` starts it again."""
        if self._prefetcher is not None:
            self._prefetcher.close()


def build_loader(
    config: DataConfig, path: Path | str, *, sequence: int, micro_batch: int, seed: int, prefetch: bool = True
) -> Loader:
    """Loader over the token shards in the data folder `path`; `micro_batch` changes neither order nor token hash.

    Raises UsageError for no shards, unknown sources or less text than a row; IntegrityError for damaged shards.
    """
    index = GlobalIndex(open_corpus(config, path), config, sequence=sequence, seed=seed)
    return Loader(index, micro_batch=micro_batch, prefetch=prefetch)


def seen_text(loader: Loader, tokens: int, steps: int) -> str:
    """The share of the training data that a run of `tokens` tokens in `steps` steps reads, as a sentence."""
    epochs, sizes = loader.index.epochs(tokens), loader.index.source_tokens
    total = sum(sizes.values())
    share = sum(min(epochs[name], 1.0) * size for name, size in sizes.items()) / total
    of, see = f"your {short_count(total)} tokens", "1 step sees" if steps == 1 else f"{steps:,} steps see"
    if share < 0.995:
        shown = f"{100 * share:.0f}" if share >= 0.01 else f"{100 * share:.2g}"
        return f"{see} {shown} % of {of}; --train.epochs 1 for all"
    times = sum(epochs[name] * size for name, size in sizes.items()) / total
    return f"{see} all of {of}" + (f", {times:.1f} times" if times >= 1.05 else "")


def short_count(number: int) -> str:
    """`10.0M`."""
    for unit, size in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if number >= size:
            return f"{number / size:.1f}{unit}"
    return str(number)


def repetition_warnings(epochs: dict[str, float]) -> list[str]:
    """A warning for each source that is read more than four times.

    Up to four passes are about as good as new text (Muennighoff et al. 2023, arXiv 2305.16264).
    """
    return [
        f"source {name} is read {count:.1f} times: more than 4 passes add little; lower its weight or add text"
        for name, count in epochs.items()
        if count > 4
    ]


def merge_ranges(ranges: Iterable[tuple[int, int]]) -> SkippedRanges:
    """Union of half-open ranges of positions. ValueError for one that runs backwards."""
    merged: list[tuple[int, int]] = []
    for first, end in sorted((int(first), int(end)) for first, end in ranges):
        if first < 0 or end < first:
            raise ValueError(f"a range of positions runs from a to b with 0 <= a <= b, not [{first}, {end})")
        if first == end:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return tuple(merged)


def positions_of(clock: int, count: int, skipped: SkippedRanges) -> Int64[np.ndarray, " count"]:
    """Positions of the samples with numbers clock, clock + 1, ... among those that lie in no skipped range."""
    positions = np.arange(clock, clock + count, dtype=np.int64)
    for first, end in skipped:
        if count and positions[-1] < first:
            break
        positions[positions >= first] += end - first
    return positions
