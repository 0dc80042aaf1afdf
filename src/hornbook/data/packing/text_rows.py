"""Batches of rows of text: causal, or changed in place by the transforms of other objectives."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
import xxhash
from jaxtyping import Float64, Int64, UInt64

from hornbook.data.batch import Batch, Detection
from hornbook.data.batch_builder import BatchBuilder, BuildContext, BuiltBatch, SampleRefs
from hornbook.data.order.random_keys import choices, row_keys
from hornbook.data.packing.plan import Plan, Segments
from hornbook.data.packing.rows import RowArrays, RowReader, Rows, tuples

Prefixes = list[tuple[int, ...]]


class ObjectiveTransform:
    """Base of objectives' transforms: a transform changes causal rows of text in place."""

    dynamic: bool = True
    """Draws anew in each epoch."""
    gives_prefixes: bool = False
    """Pieces have tokens that are seen in both directions."""
    detects: bool = False
    """Something is told of every token, beside what is predicted."""

    def apply(self, rows: RowArrays, which: Int64[np.ndarray, " some"], keys: UInt64[np.ndarray, " rows"]) -> None:
        """Change the rows numbered `which`; all draws for row i follow from keys[i]."""
        raise NotImplementedError


class TextRows(BatchBuilder):
    """Builds batches of text: causal rows, which a mixture of objectives may change."""

    def __init__(
        self,
        context: BuildContext,
        plans: Sequence[Plan],
        transforms: Sequence[ObjectiveTransform | None],
        bounds: Float64[np.ndarray, " components"],
    ) -> None:
        """`transforms`: None leaves a row causal; `bounds`: the cumulated shares of the components."""
        super().__init__(plans)
        mask = context.config.document_mask
        self._reader = RowReader(context.corpus, context.streams, sequence=context.sequence, document_mask=mask)
        self._transforms, self._bounds, self._keys = list(transforms), bounds, context.keys
        self._changes = any(each is not None for each in transforms)
        self._dynamic = all(each is None or each.dynamic for each in transforms)
        self._gives_prefixes = any(each is not None and each.gives_prefixes for each in transforms)
        self._detects = any(each is not None and each.detects for each in transforms)

    def build(self, refs: SampleRefs, micro_batch: int) -> BuiltBatch:
        segments = self.segments(refs)
        rows, prefixes = self._reader.read(refs.sources, segments), None
        if refs.reach is not None:
            rows = _cut(rows, refs.reach)
        if self._changes:
            rows, prefixes = self._changed(rows, segments, refs)
        built = in_microbatches(rows, prefixes, refs, micro_batch)
        if not self._detects:
            return built
        used = np.add.reduceat(segments[2], segments[0][:-1]) * rows.arrays.weights.any(1)
        return _with_detection(built, torch.from_numpy(used), micro_batch)

    def _changed(self, rows: Rows, segments: Segments, refs: SampleRefs) -> tuple[Rows, Prefixes | None]:
        """The rows changed in place, and the prefixes of their pieces if any transform gives them some."""
        (offsets, _, sizes), first = segments, np.zeros_like(refs.epochs)
        used, prefixes = np.add.reduceat(sizes, offsets[:-1]), np.zeros(rows.arrays.bounds[-1], np.int32)
        arrays = rows.arrays._replace(used=used, prefixes=prefixes)
        chosen = choices(self._keys, self._bounds, refs.sources, refs.rows, refs.epochs if self._dynamic else first)
        for number, transform in enumerate(self._transforms):
            if transform is not None:
                epochs = refs.epochs if transform.dynamic else first
                keys = row_keys(self._keys, refs.sources, refs.rows, epochs)
                transform.apply(arrays, np.flatnonzero(chosen == number), keys)
        changed = replace(rows, total_weight=int(np.count_nonzero(arrays.weights)))
        return changed, tuples(arrays.prefixes, arrays.bounds) if self._gives_prefixes else None


def _cut(rows: Rows, reach: Int64[np.ndarray, " rows"]) -> Rows:
    """The rows with each piece cut every `reach` tokens, from where positions begin anew."""
    arrays = rows.arrays
    bounds, pieces = arrays.bounds, arrays.pieces[: arrays.bounds[-1]].astype(np.int64)
    sizes = np.repeat(reach, np.diff(bounds))
    counts = -(-pieces // sizes)
    parts, ends = np.repeat(sizes, counts), np.cumsum(counts)
    parts[ends - 1] = pieces - (counts - 1) * sizes
    arrays.positions[:] %= reach[:, None]
    bounds = np.concatenate([[0], ends])[bounds]
    arrays = arrays._replace(pieces=parts.astype(np.int32), bounds=bounds)
    return replace(rows, arrays=arrays, document_lengths=tuples(arrays.pieces, bounds))


def _with_detection(built: BuiltBatch, used: Int64[torch.Tensor, " rows"], micro_batch: int) -> BuiltBatch:
    """The batch with what is told of the tokens of each row before its padding, `used` of them."""
    share = built.total_weight / max(int(used.sum()), 1)

    def microbatch(j: int) -> Batch:
        mine = slice(j * micro_batch, (j + 1) * micro_batch)
        return replace(built.microbatch(j), detection=Detection(used[mine], share))

    return built._replace(microbatch=microbatch)


def in_microbatches(rows: Rows, prefixes: Prefixes | None, refs: SampleRefs, micro_batch: int) -> BuiltBatch:
    """Rows as a global batch."""
    count, samples, sources = len(refs.positions), torch.from_numpy(refs.positions), torch.from_numpy(refs.sources)
    cuts = [min(micro_batch, count - first) for first in range(0, count, micro_batch)]
    tokens, targets, weights, positions, ids = rows.arrays[:5]
    columns = (*map(torch.from_numpy, (tokens, targets, weights, positions)), samples, sources)
    grid = [columns] if len(cuts) == 1 else list(zip(*(part.split_with_sizes(cuts) for part in columns), strict=True))

    def microbatch(j: int) -> Batch:
        tokens, targets, weights, places, numbers, origins = grid[j]
        mine = slice(j * micro_batch, (j + 1) * micro_batch)
        leading = None if prefixes is None else prefixes[mine]
        lengths = rows.document_lengths[mine]
        return Batch(tokens, targets, weights, places, lengths, numbers, origins, prefixes=leading)

    return BuiltBatch(float(rows.total_weight), xxhash.xxh3_64_hexdigest(ids.data), microbatch)
