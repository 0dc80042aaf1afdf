"""Batches whose rows are text: causal ones, and what objectives make of them in place (prefix, masked, mixtures)."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt64

from hornbook.data.batch import Batch
from hornbook.data.corpus import Corpus, Stream
from hornbook.data.batch_builder import Draws, Made
from hornbook.data.order.random_keys import Keys, choices, row_keys
from hornbook.data.packing.plan import Plan, PlanSet, Segments
from hornbook.data.packing.row_arrays import RowArrays, row_arrays
from hornbook.data.packing.rows import RowReader, Rows, tuples

Prefixes = list[tuple[int, ...]]


class Change(Protocol):
    """An objective that changes rows of text in place."""

    dynamic: bool
    """Draws anew in each epoch."""
    gives_prefixes: bool
    """Pieces have tokens that are seen in both directions."""

    def apply(self, rows: RowArrays, which: Int64[np.ndarray, " some"], keys: UInt64[np.ndarray, " rows"]) -> None:
        """Change the rows numbered `which`; what is drawn for row i follows from keys[i]."""
        ...


class Changes:
    """A mixture of objectives over rows of text."""

    def __init__(self, parts: Sequence[Change | None], bounds: Float64[np.ndarray, " parts"], keys: Keys) -> None:
        """`parts`: None leaves a row causal; `bounds`: the cumulated shares of the parts."""
        self._parts, self._bounds, self._keys = list(parts), bounds, keys
        self._dynamic = all(part is None or part.dynamic for part in parts)
        self._gives_prefixes = any(part is not None and part.gives_prefixes for part in parts)

    def apply(self, rows: Rows, segments: Segments, draws: Draws) -> tuple[Rows, Prefixes | None]:
        """The rows changed in place, and the prefixes of their pieces if any part gives them some."""
        offsets, _, sizes = segments
        arrays = row_arrays(rows, np.add.reduceat(sizes, offsets[:-1]))
        first = np.zeros_like(draws.epochs)
        epochs = draws.epochs if self._dynamic else first
        chosen = choices(self._keys, self._bounds, draws.sources, draws.rows, epochs)
        for number, part in enumerate(self._parts):
            if part is not None:
                epochs = draws.epochs if part.dynamic else first
                keys = row_keys(self._keys, draws.sources, draws.rows, epochs)
                part.apply(arrays, np.flatnonzero(chosen == number), keys)
        changed = replace(rows, total_weight=int(np.count_nonzero(arrays.weights)))
        return changed, tuples(arrays.prefixes, arrays.bounds) if self._gives_prefixes else None


class TextRows:
    """Makes batches of text."""

    def __init__(
        self,
        corpus: Corpus,
        streams: Sequence[Stream],
        plans: Sequence[Plan],
        *,
        sequence: int,
        document_mask: bool,
        changes: Changes | None = None,
    ) -> None:
        """Without `changes` the rows are causal."""
        self.plans = plans
        self._plan_set, self._changes = PlanSet(plans), changes
        self._reader = RowReader(corpus, streams, sequence=sequence, document_mask=document_mask)

    def segments(self, draws: Draws) -> Segments:
        """Which stretches of the streams each sample is made from."""
        return self._plan_set.segments(draws.sources, draws.rows)

    def make(self, draws: Draws, micro_batch: int) -> Made:
        """The samples as one global batch."""
        segments = self.segments(draws)
        rows, prefixes = self._reader.read(draws.sources, segments), None
        if self._changes is not None:
            rows, prefixes = self._changes.apply(rows, segments, draws)
        return in_microbatches(rows, prefixes, draws, micro_batch)


def in_microbatches(rows: Rows, prefixes: Prefixes | None, draws: Draws, micro_batch: int) -> Made:
    """Rows as a global batch."""
    count, samples, sources = len(draws.positions), torch.from_numpy(draws.positions), torch.from_numpy(draws.sources)
    cuts = [min(micro_batch, count - first) for first in range(0, count, micro_batch)]
    columns = (rows.tokens, rows.targets, rows.weights, rows.positions, samples, sources)
    grid = [columns] if len(cuts) == 1 else list(zip(*(part.split_with_sizes(cuts) for part in columns), strict=True))

    def microbatch(j: int) -> Batch:
        tokens, targets, weights, places, numbers, origins = grid[j]
        mine = slice(j * micro_batch, (j + 1) * micro_batch)
        leading = None if prefixes is None else prefixes[mine]
        lengths = rows.lengths[mine]
        return Batch(tokens, targets, weights, places, lengths, numbers, origins, prefixes=leading)

    return Made(float(rows.total_weight), rows.token_hash, microbatch)
