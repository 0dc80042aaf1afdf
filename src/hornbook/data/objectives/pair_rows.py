"""Batches of pairs: the source that an encoder reads, the target that a decoder writes.

A microbatch is as wide as its longest row on each side, rounded up to `MULTIPLE` where rows differ; so its shape
follows from its rows alone. Components of a mixture have targets of different lengths, so the rows of a global batch
are sorted by component: nearly every microbatch then has rows of one length.
"""

import numpy as np
import torch
from jaxtyping import Int64

from hornbook.data.batch import Batch, Source
from hornbook.data.batch_builder import BatchBuilder, BuildContext, BuiltBatch, SampleRefs
from hornbook.data.objectives.pair_plan import PairPlans
from hornbook.data.objectives.pairs import NoiseTable, Pairs, Roles, write_pairs
from hornbook.data.order.random_keys import choices, row_keys
from hornbook.data.packing.plan import Segments
from hornbook.data.packing.rows import tuples
from hornbook.data.shards.shard_table import ShardTable
from hornbook.kernels.compiled import compiled

MULTIPLE = 8
"""Rows of different lengths are padded to a multiple of this."""


class PairRows(BatchBuilder):
    """Builds batches of pairs."""

    def __init__(self, context: BuildContext, plans: PairPlans, noises: NoiseTable, roles: Roles) -> None:
        super().__init__(plans.first)
        self._plans, self._shards = plans, ShardTable(context.corpus, context.streams)
        self._noises, self._roles, self._keys = noises, roles, context.keys

    def segments(self, refs: SampleRefs) -> Segments:
        """Spans of the streams that each sample is made from: pieces of at least 2 tokens."""
        return self._plans.segments(refs)[0]

    def build(self, refs: SampleRefs, micro_batch: int) -> BuiltBatch:
        refs, chosen = self._by_component(refs)
        bounds, begins, sizes = self.segments(refs)
        raw = self._shards.gather(np.repeat(refs.sources, np.diff(bounds)), begins, sizes)
        keys = row_keys(self._keys, refs.sources, refs.rows, refs.epochs)
        pairs = write_pairs(self._noises, self._roles, raw, bounds, sizes, chosen, keys)
        return pairs_in_microbatches(pairs, refs, micro_batch, self._roles.pad)

    def _by_component(self, refs: SampleRefs) -> tuple[SampleRefs, Int64[np.ndarray, " n"]]:
        """The samples sorted by their component of the mixture, and the components."""
        if len(self._noises.bounds) == 1:
            return refs, np.zeros_like(refs.rows)
        _, rows = self._plans.segments(refs)
        chosen = choices(self._keys, self._noises.bounds, refs.sources, rows, refs.epochs)
        order = np.argsort(np.where(self._noises.infills, 1.0, self._noises.rates)[chosen], kind="stable")
        return SampleRefs(*(column[order] for column in refs[:4])), chosen[order]


@compiled
def _spread(flat, begin, lengths, gap, first, bounds, tokens, positions):
    """Copy pieces, which follow each other in `flat` from `begin` on with `gap` ids between, into rows.

    The rest of a row keeps its tokens; its positions count on from 0.
    """
    at = begin
    for row in range(tokens.shape[0]):
        column = 0
        for p in range(bounds[first + row], bounds[first + row + 1]):
            for j in range(lengths[p]):
                tokens[row, column + j] = flat[at + j]
                positions[row, column + j] = j
            column += lengths[p]
            at += lengths[p] + gap
        for j in range(column, tokens.shape[1]):
            positions[row, j] = j - column


def _widths(sums: Int64[np.ndarray, "2 rows"]) -> tuple[int, int]:
    """Width of source and target, such that each row is full on both sides or on none."""
    longest = sums.max(1)
    if (sums == longest[:, None]).all():
        return int(longest[0]), int(longest[1])
    widths = -(-longest // MULTIPLE) * MULTIPLE
    full = sums == widths[:, None]
    if (full[0] != full[1]).any():
        widths += MULTIPLE * full.any(1)
    return int(widths[0]), int(widths[1])


def pairs_in_microbatches(pairs: Pairs, refs: SampleRefs, micro_batch: int, pad: int) -> BuiltBatch:
    """Pairs as a global batch; `pad` is the padding token."""

    def microbatch(j: int) -> Batch:
        first = j * micro_batch
        return _pair_batch(pairs, refs, first, min(first + micro_batch, len(refs.rows)), pad)

    return BuiltBatch(float(pairs.total_weight), pairs.token_hash, microbatch)


def _pair_batch(pairs: Pairs, refs: SampleRefs, first: int, end: int, pad: int) -> Batch:
    """Rows [first, end) as a microbatch."""
    bounds = pairs.bounds
    pieces = slice(bounds[first], bounds[end])
    sums = np.add.reduceat(pairs.lengths[:, pieces], bounds[first:end] - bounds[first], axis=1)
    before = pairs.lengths[:, : pieces.start].sum(1)
    rows, (inputs, outputs) = end - first, _widths(sums)
    source, source_positions = np.full((rows, inputs), pad), np.empty((rows, inputs), np.int64)
    tokens, targets = np.full((2, rows, outputs), pad)
    positions = np.empty((rows, outputs), np.int64)
    source_at, target_at = int(before[0]), int(before[1] + pieces.start)
    _spread(pairs.source, source_at, pairs.lengths[0], 0, first, bounds, source, source_positions)
    _spread(pairs.target, target_at, pairs.lengths[1], 1, first, bounds, tokens, positions)
    _spread(pairs.target, target_at + 1, pairs.lengths[1], 1, first, bounds, targets, positions)
    weights = (np.arange(outputs) < sums[1][:, None]).astype(np.float32)
    return Batch(
        torch.from_numpy(tokens),
        torch.from_numpy(targets),
        torch.from_numpy(weights),
        torch.from_numpy(positions),
        _lengths(pairs.lengths[1], bounds, first, outputs - sums[1]),
        torch.from_numpy(refs.positions[first:end]),
        torch.from_numpy(refs.sources[first:end]),
        source=Source(
            torch.from_numpy(source),
            torch.from_numpy(source_positions),
            _lengths(pairs.lengths[0], bounds, first, inputs - sums[0]),
        ),
    )


def _lengths(
    lengths: Int64[np.ndarray, " pieces"], bounds: Int64[np.ndarray, " all+1"], first: int, padding: np.ndarray
) -> list[tuple[int, ...]]:
    """Lengths of the pieces of each row and, where there is any, of its padding."""
    mine = bounds[first : first + len(padding) + 1]
    pieces = tuples(lengths[mine[0] :], mine - mine[0])
    return [(*some, left) if left else some for some, left in zip(pieces, padding.tolist(), strict=True)]
