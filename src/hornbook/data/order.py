"""The order of the data: position -> source and k-th draw of it -> epoch and row.

A pure function of (seed, sizes, stages, position) that takes the same time at any position, so that resuming,
seeking and skipping are arithmetic. Epoch e of a source is a permutation of its rows keyed by (seed, source
name, e); a source is repeated as often as its weight asks.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Int64

from hornbook.data.compiled import compiled
from hornbook.data.mixture import BLOCK, Stage
from hornbook.data.permutation import key_of, mix, permuted

Kind = Literal["shuffled", "sequential", "replacement"]
_KINDS = {"shuffled": 0, "sequential": 1, "replacement": 2}


@compiled
def _locate(
    positions: np.ndarray,
    firsts: np.ndarray,
    before: np.ndarray,
    counts: np.ndarray,
    patterns: np.ndarray,
    ranks: np.ndarray,
    sizes: np.ndarray,
    keys: np.ndarray,
    kind: int,
    sources: np.ndarray,
    rows: np.ndarray,
    epochs: np.ndarray,
) -> None:
    for i in range(positions.size):
        stage = np.searchsorted(firsts, positions[i], side="right") - 1
        since = positions[i] - firsts[stage]
        block, place = since // BLOCK, since % BLOCK
        source = patterns[stage, place]
        draw = before[stage, source] + block * counts[stage, source] + ranks[stage, place]
        size = sizes[source]
        epoch, row = draw // size, draw % size
        if kind == 0:
            row = permuted(row, size, mix(keys[source] ^ mix(np.uint64(epoch) + np.uint64(1))))
        elif kind == 2:
            row = np.int64(mix(keys[source] ^ mix(np.uint64(draw) + np.uint64(1))) % np.uint64(size))
        sources[i], rows[i], epochs[i] = source, row, epoch


class Order:
    """Order of the rows of several sources."""

    def __init__(
        self, names: Sequence[str], sizes: Sequence[int], stages: Sequence[Stage], *, seed: int, kind: Kind = "shuffled"
    ) -> None:
        """`sizes`: rows of each source (at least 1); `stages`: the first begins at position 0."""
        assert stages[0].first == 0
        assert len(names) == len(sizes) == len(stages[0].counts)
        assert min(sizes) > 0
        self.stages = list(stages)
        self._sizes = np.asarray(sizes, np.int64)
        self._keys = np.array([key_of("order", seed, name) for name in names], np.uint64)
        self._kind = _KINDS[kind]
        self._firsts = np.array([stage.first for stage in stages], np.int64)
        self._before = np.array([self.draws(stage.first) for stage in stages], np.int64)
        self._counts = np.array([stage.counts for stage in stages], np.int64)
        self._patterns = np.array([stage.pattern for stage in stages], np.int32)
        self._ranks = np.array([stage.ranks for stage in stages], np.int64)

    def draws(self, samples: int) -> Int64[np.ndarray, " sources"]:
        """How often each source is drawn in positions [0, samples)."""
        total = np.zeros(len(self._sizes), np.int64)
        ends = [stage.first for stage in self.stages[1:]] + [samples]
        for stage, end in zip(self.stages, ends, strict=True):
            if samples > stage.first:
                total += stage.draws(min(end, samples) - stage.first)
        return total

    def locate(
        self, positions: Int64[np.ndarray, " n"]
    ) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
        """Source, row and epoch of each position."""
        sources, rows, epochs = (np.empty(len(positions), np.int64) for _ in range(3))
        _locate(
            positions, self._firsts, self._before, self._counts, self._patterns, self._ranks,
            self._sizes, self._keys, self._kind, sources, rows, epochs,
        )  # fmt: skip
        return sources, rows, epochs
