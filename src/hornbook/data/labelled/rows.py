"""Batches of labelled texts: rows of whole documents, weights on the tokens that carry labels.

Tokens are read as for any rows of text; then targets, values, weights and token types are written from the labels
stored beside the tokens.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int64

from hornbook.data.batch import Batch, Mixed
from hornbook.data.batch_builder import BatchBuilder, BuildContext, BuiltBatch, SampleRefs
from hornbook.data.config.objectives import Answer, Labels
from hornbook.data.labelled.mixup import partners
from hornbook.data.order.random_keys import row_keys
from hornbook.data.packing.plan import Plan, Segments, stream_ends
from hornbook.data.packing.rows import RowArrays, RowReader
from hornbook.data.packing.text_rows import in_microbatches
from hornbook.data.shards.shard_table import LabelTable
from hornbook.text.config.labels import ChatLabels, ClassLabels, LabelsConfig, NumberLabels, SpanLabels, is_paired
from hornbook.text.tokenizer.label_tokens import END, START


class Pieces(NamedTuple):
    """The documents of some rows, a piece each."""

    streams: Int64[np.ndarray, " pieces"]
    begins: Int64[np.ndarray, " pieces"]
    """First token in the stream."""
    sizes: Int64[np.ndarray, " pieces"]
    places: Int64[np.ndarray, " pieces"]
    """First token, as an index into all rows one after the other."""
    whole: np.ndarray
    """bool [pieces]: the document was not cut."""

    @property
    def lasts(self) -> Int64[np.ndarray, " pieces"]:
        """Last token, as an index into all rows."""
        return self.places + self.sizes - 1

    def spread(self, values: np.ndarray) -> np.ndarray:
        """A value for each token of the pieces."""
        return np.repeat(values, self.sizes)

    @property
    def steps(self) -> Int64[np.ndarray, " tokens"]:
        """Place of each token in its piece."""
        return np.arange(self.sizes.sum()) - self.spread(np.cumsum(self.sizes) - self.sizes)

    @property
    def ends(self) -> np.ndarray:
        """Which tokens are the last of their pieces: bool [tokens]."""
        return self.steps == self.spread(self.sizes - 1)


def _of_rows(mixed: Mixed, rows: slice) -> Mixed:
    values = None if mixed.values is None else mixed.values[rows]
    return Mixed(mixed.tokens[rows], mixed.shares[rows], mixed.targets[rows], values)


class LabelledRows(BatchBuilder):
    """Builds batches of labelled texts; `plans` are of `plan.row_plan`."""

    def __init__(
        self, context: BuildContext, plans: Sequence[Plan], objective: Labels | Answer, ends_between: int
    ) -> None:
        """`ends_between`: end tokens between the two texts of a pair."""
        corpus, streams = context.corpus, context.streams
        assert corpus.labels is not None
        super().__init__(plans)
        self._reader = RowReader(corpus, streams, sequence=context.sequence, document_mask=True)
        self._labels, self._ends = LabelTable(streams), [stream_ends(stream) for stream in streams]
        self._kind: LabelsConfig = corpus.labels
        self._objective, self._sequence, self._ends_between = objective, context.sequence, ends_between
        self._end, self._own_end = corpus.end_id, corpus.end_id != corpus.delimiter_id
        self._mixup = 0.0 if context.evaluation or not isinstance(objective, Labels) else objective.mixup
        self._keys = context.keys

    def build(self, refs: SampleRefs, micro_batch: int) -> BuiltBatch:
        segments = self.segments(refs)
        rows = self._reader.read(refs.sources, segments)
        arrays, pieces = rows.arrays, self._pieces(refs, segments)
        values = self._label(arrays, pieces)
        types = self._types(arrays, pieces)
        mixed = self._mix(refs, segments, arrays, pieces) if self._mixup else None
        rows = replace(rows, total_weight=int(np.count_nonzero(arrays.weights)))
        built = in_microbatches(rows, None, refs, micro_batch)

        def microbatch(j: int) -> Batch:
            mine = slice(j * micro_batch, (j + 1) * micro_batch)
            return replace(
                built.microbatch(j),
                values=None if values is None else torch.from_numpy(values[mine]),
                types=None if types is None else torch.from_numpy(types[mine]),
                mixed=None if mixed is None else _of_rows(mixed, mine),
            )

        return built._replace(microbatch=microbatch)

    def _pieces(self, refs: SampleRefs, segments: Segments) -> Pieces:
        offsets, begins, sizes = segments
        counts = np.diff(offsets)
        rows, streams = np.repeat(np.arange(len(counts)), counts), np.repeat(refs.sources, counts)
        before = np.cumsum(sizes) - sizes
        columns = before - np.repeat(before[offsets[:-1]], counts)
        whole = np.empty(len(begins), bool)
        for number, ends in enumerate(self._ends):
            some = streams == number
            whole[some] = ends[np.searchsorted(ends, begins[some], side="right")] == begins[some] + sizes[some]
        return Pieces(streams, begins, sizes, rows * self._sequence + columns, whole)

    def _label(self, arrays: RowArrays, pieces: Pieces) -> np.ndarray | None:
        """Write targets and weights; returns the values of labels that are numbers."""
        targets, weights = arrays.targets.reshape(-1), arrays.weights.reshape(-1)
        if isinstance(self._objective, Answer):
            weights[self._tokens(pieces)] *= self._answered(pieces, closed=not isinstance(self._kind, ChatLabels))
            return None
        self._close(arrays, pieces)
        targets[:], weights[:] = 0, 0.0
        if isinstance(self._kind, ClassLabels | NumberLabels):
            return self._label_texts(arrays, pieces)
        labels = self._labels.at(pieces.spread(pieces.streams), pieces.spread(pieces.begins) + pieces.steps)[:, 0]
        labels[pieces.ends & pieces.spread(~pieces.whole) & self._own_end] = np.nan
        places = self._tokens(pieces)
        targets[places] = np.nan_to_num(labels)
        if isinstance(self._kind, SpanLabels):
            first = np.cumsum(pieces.sizes) - pieces.sizes
            bits = np.bitwise_or.reduceat(targets[places], first)
            weights[pieces.places] = bits & (START | END) == START | END
        else:
            weights[places] = ~np.isnan(labels)
        return None

    def _label_texts(self, arrays: RowArrays, pieces: Pieces) -> np.ndarray | None:
        arrays.weights.reshape(-1)[self._label_places(pieces)] = 1.0
        return self._write_labels(arrays.targets, pieces, np.arange(len(pieces.sizes)))

    def _label_places(self, pieces: Pieces) -> Int64[np.ndarray, " pieces"]:
        """The token of each text that carries its label, as an index into all rows."""
        assert isinstance(self._objective, Labels)
        first = self._objective.token == "first"
        return pieces.places if first else np.maximum(pieces.lasts - self._own_end, pieces.places)

    def _write_labels(self, targets: np.ndarray, pieces: Pieces, whose: Int64[np.ndarray, " pieces"]) -> Any:
        """Write the label of piece `whose[i]` where piece i has its own; returns the values of labels of numbers."""
        labels, places = self._labels.at(pieces.streams[whose], pieces.begins[whose]), self._label_places(pieces)
        if isinstance(self._kind, ClassLabels) and not self._kind.multiple:
            targets.reshape(-1)[places] = labels[:, 0]
            return None
        values = np.zeros((*targets.shape, labels.shape[1]), np.float32)
        values.reshape(-1, labels.shape[1])[places] = labels
        return values

    def _mix(self, refs: SampleRefs, segments: Segments, arrays: RowArrays, pieces: Pieces) -> Mixed:
        """What each text is mixed with."""
        found = partners(segments[0], row_keys(self._keys, refs.sources, refs.rows, refs.epochs), self._mixup)
        places, own = self._tokens(pieces), arrays.tokens.reshape(-1)
        reaches = pieces.steps < pieces.spread(pieces.sizes[found.others])
        other = np.where(reaches, pieces.spread(pieces.places[found.others]) + pieces.steps, places)
        tokens, shares = arrays.tokens.copy(), np.ones(arrays.tokens.shape, np.float32)
        tokens.reshape(-1)[places], shares.reshape(-1)[places] = own[other], pieces.spread(found.shares)
        targets = np.zeros_like(arrays.targets)
        values = self._write_labels(targets, pieces, found.others)
        given = [torch.from_numpy(each) for each in (tokens, shares, targets)]
        return Mixed(given[0], given[1], given[2], None if values is None else torch.from_numpy(values))

    def _tokens(self, pieces: Pieces) -> Int64[np.ndarray, " tokens"]:
        """Index of each token of the pieces into all rows one after the other."""
        return pieces.spread(pieces.places) + pieces.steps

    def _close(self, arrays: RowArrays, pieces: Pieces) -> None:
        """Give cut documents their end token, where documents have one of their own."""
        if self._own_end:
            cut = pieces.lasts[~pieces.whole]
            arrays.tokens.reshape(-1)[cut] = self._end
            arrays.ids.reshape(-1)[cut] = self._end

    def _answered(self, pieces: Pieces, *, closed: bool) -> np.ndarray:
        """True for each token whose successor belongs to the answer; the end token belongs to the part that it ends.

        closed: an end token follows the last token. A chat template has written what ends an answer, so none does.
        """
        ends = pieces.ends & pieces.spread(pieces.whole)
        following = pieces.spread(pieces.begins) + pieces.steps + ~ends
        answered = ~np.isnan(self._labels.at(pieces.spread(pieces.streams), following)[:, 0])
        return answered if closed else answered & ~ends

    def _types(self, arrays: RowArrays, pieces: Pieces) -> np.ndarray | None:
        """Token types: 1 after the end tokens between two texts."""
        if not is_paired(self._kind):
            return None
        places = self._tokens(pieces)
        ends = (arrays.tokens.reshape(-1)[places] == self._end) & (pieces.steps > 0)
        before = np.cumsum(ends) - ends
        is_second = before - pieces.spread(before[np.cumsum(pieces.sizes) - pieces.sizes]) >= self._ends_between
        types = np.zeros_like(arrays.tokens)
        types.reshape(-1)[places] = is_second
        return types
