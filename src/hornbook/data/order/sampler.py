"""The sampler: position -> source and k-th draw of it -> epoch and row.

A pure function of (seed, sizes, stages, position) that takes the same time at any position, so that resuming,
seeking and skipping are arithmetic. Epoch e of a source is a permutation of its rows keyed by (seed, source
name, e); a source is repeated as often as its weight asks. A curriculum gives the first of them as a list.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Int64

from hornbook.data.order.mixture import BLOCK, Stage
from hornbook.data.order.random_keys import key_of, permuted
from hornbook.kernels.compiled import compiled, count_up_to, mix

Kind = Literal["shuffled", "sequential", "replacement"]
_KINDS = {"shuffled": 0, "sequential": 1, "replacement": 2}


class _Table(NamedTuple):
    firsts: np.ndarray  # int64 [stages]: position at which each stage begins
    before: np.ndarray  # int64 [stages, sources]: draws before the stage
    counts: np.ndarray  # int64 [stages, sources]: draws in a block
    patterns: np.ndarray  # int32 [stages, 4096]: source of each draw in a block
    ranks: np.ndarray  # int64 [stages, 4096]: draws of the same source before it in the block
    sizes: np.ndarray  # int64 [sources]: rows
    keys: np.ndarray  # uint64 [sources]
    listed: np.ndarray  # int64 [sources + 1]: where each source's rows of the first epoch begin in `lists`
    lists: np.ndarray  # int64: those rows, of the sources that have a list


@compiled
def _locate(table, kind, positions, out):
    """Source, row and epoch of each position into `out` [3, positions]."""
    for i in range(positions.size):
        stage = count_up_to(table.firsts, positions[i]) - 1
        since = positions[i] - table.firsts[stage]
        block, place = since // BLOCK, since % BLOCK
        source = table.patterns[stage, place]
        draw = table.before[stage, source] + block * table.counts[stage, source] + table.ranks[stage, place]
        size, key = table.sizes[source], table.keys[source]
        epoch, row = draw // size, draw % size
        if epoch == 0 and table.listed[source] < table.listed[source + 1]:
            row = table.lists[table.listed[source] + row]
        elif kind == 0:
            row = permuted(row, size, mix(key ^ mix(np.uint64(epoch) + np.uint64(1))))
        elif kind == 2:
            row = np.int64(mix(key ^ mix(np.uint64(draw) + np.uint64(1))) % np.uint64(size))
        out[0, i], out[1, i], out[2, i] = source, row, epoch


class Sampler:
    """The rows of several sources in the order of training."""

    def __init__(
        self,
        names: Sequence[str],
        sizes: Sequence[int],
        stages: Sequence[Stage],
        *,
        seed: int,
        kind: Kind = "shuffled",
        first_epochs: Mapping[int, Int64[np.ndarray, " rows"]] | None = None,
    ) -> None:
        """`sizes`: rows of each source (at least 1); `stages`: the first begins at position 0.

        `first_epochs`: by number of a source, its rows in the order of its first epoch.
        """
        assert stages[0].first == 0
        assert len(names) == len(sizes) == len(stages[0].counts)
        assert min(sizes) > 0
        self.stages = list(stages)
        self._kind = _KINDS[kind]
        self._sources = len(names)
        lists = [(first_epochs or {}).get(source, np.empty(0, np.int64)) for source in range(len(names))]
        self._table = _Table(
            np.array([stage.first for stage in stages], np.int64),
            np.array([self.draws(stage.first) for stage in stages], np.int64),
            np.array([stage.counts for stage in stages], np.int64),
            np.array([stage.pattern for stage in stages], np.int32),
            np.array([stage.ranks for stage in stages], np.int64),
            np.array(sizes, np.int64),
            np.array([key_of("order", seed, name) for name in names], np.uint64),
            np.cumsum([0, *map(len, lists)], dtype=np.int64),
            np.concatenate(lists),
        )

    def draws(self, samples: int) -> Int64[np.ndarray, " sources"]:
        """How often each source is drawn in positions [0, samples)."""
        total = np.zeros(self._sources, np.int64)
        ends = [stage.first for stage in self.stages[1:]] + [samples]
        for stage, end in zip(self.stages, ends, strict=True):
            if samples > stage.first:
                total += stage.draws(min(end, samples) - stage.first)
        return total

    def locate(self, positions: Int64[np.ndarray, " n"]) -> Int64[np.ndarray, "3 n"]:
        """Source, row and epoch of each position."""
        out = np.empty((3, len(positions)), np.int64)
        _locate(self._table, self._kind, positions, out)
        return out
