"""Rows as tensors: copies tokens from the mapped shards and marks where documents begin and end.

One compiled pass per global batch finds the documents of each row by binary search in the END offsets and
writes inputs, targets, weights and positions.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Int64
from numba import carray  # pyright: ignore[reportPrivateImportUsage]

from hornbook.data.corpus import Corpus, Stream
from hornbook.data.packing.plan import Segments
from hornbook.data.shards.shard_table import ENDS_DESCEND, UNCHECKED, ShardTable, first_unchecked
from hornbook.kernels.compiled import compiled, count_up_to, inlined, pointer


class _Rules(NamedTuple):
    wide: bool  # ids are uint32, else uint16
    end_id: int
    end_counts: bool  # the end token is predicted after a document's last token
    confine: bool  # attention stays inside documents, positions restart
    vocab: int


class _Out(NamedTuple):
    tokens: np.ndarray  # int64 [rows, sequence]
    targets: np.ndarray
    weights: np.ndarray  # float32 [rows, sequence]
    positions: np.ndarray
    ids: np.ndarray  # int32 [rows, sequence]
    pieces: np.ndarray  # int32 [rows * sequence]: lengths of the pieces of all rows
    pieces_end: np.ndarray  # int64 [rows]: where each row's lengths end
    damage: np.ndarray  # int64 [2]: entry of a shard, and the id found in it, ENDS_DESCEND or UNCHECKED


@inlined
def _copy(data, follows, end_id, tokens, targets, ids):
    """Inputs and targets of one piece; `data` is the piece and, where the document goes on, the token after it.

    Slices that start at 0 let the compiler see that no index is negative, without which it makes no vector code.
    """
    length = tokens.size
    largest = data[0]
    for j in range(length):
        tokens[j] = data[j]
    for j in range(length):
        ids[j] = data[j]
        largest = max(largest, data[j])
    for j in range(length - 1):
        targets[j] = data[j + 1]
    if follows:
        largest = max(largest, data[length])
        targets[length - 1] = data[length]
    else:
        targets[length - 1] = end_id
    return np.int64(largest)


@inlined
def _fill_piece(table, rules, out, row, column, entry, local, piece, follows):
    """Write one piece of a document; returns its weight, or -1 for damage."""
    stop, after = column + piece, local + piece + (1 if follows else 0)
    size = table.starts[entry + 1] - table.starts[entry]
    tokens, targets, ids = out.tokens[row, column:stop], out.targets[row, column:stop], out.ids[row, column:stop]
    if rules.wide:
        data = carray(pointer(table.data[entry]), (size,), np.uint32)
        largest = _copy(data[local:after], follows, rules.end_id, tokens, targets, ids)
    else:
        data = carray(pointer(table.data[entry]), (size,), np.uint16)
        largest = _copy(data[local:after], follows, rules.end_id, tokens, targets, ids)
    if largest >= rules.vocab:
        out.damage[0], out.damage[1] = entry, largest
        return np.int64(-1)
    weights = out.weights[row, column:stop]
    for j in range(piece):
        weights[j] = 1.0
    if follows or rules.end_counts:
        return piece
    weights[piece - 1] = 0.0
    return piece - 1


@inlined
def _count(positions):
    """0, 1, 2, ..."""
    for j in range(positions.size):
        positions[j] = j


@inlined
def _count_positions(rules, out, row, column, length, used):
    """Positions of a piece that attends only to itself; returns the number of lengths noted so far."""
    if rules.confine:
        _count(out.positions[row, column : column + length])
        out.pieces[used] = length
        return used + 1
    return used


@inlined
def _fill_segment(table, rules, out, row, column, stream, position, left, used):
    """Write a span of a stream, document by document; returns (weight or -1 for damage, lengths noted)."""
    entry = table.first[stream] - 1
    entry += count_up_to(table.starts[table.first[stream] : table.first[stream + 1] - 1], position)
    weight = np.int64(0)
    while left > 0:
        size, local = table.starts[entry + 1] - table.starts[entry], position - table.starts[entry]
        if first_unchecked(table, rules.wide, entry, local, left) >= 0:
            out.damage[0], out.damage[1] = entry, UNCHECKED
            return np.int64(-1), used
        ends = carray(pointer(table.ends[entry]), (table.documents[entry],), np.uint64)
        document = count_up_to(ends, np.uint64(local))
        while left > 0 and local < size:
            end = np.int64(ends[document]) if document < ends.size else np.int64(-1)
            if end <= local or end > size:
                out.damage[0], out.damage[1] = entry, ENDS_DESCEND
                return np.int64(-1), used
            piece = min(left, end - local)
            gained = _fill_piece(table, rules, out, row, column, entry, local, piece, local + piece < end)
            if gained < 0:
                return np.int64(-1), used
            used = _count_positions(rules, out, row, column, piece, used)
            weight += gained
            column, local, position, left = column + piece, local + piece, position + piece, left - piece
            document += 1
        entry += 1
    return weight, used


@inlined
def _pad(rules, out, row, column, used):
    """Fill a row up with end tokens of weight 0; returns the number of lengths noted."""
    out.tokens[row, column:] = rules.end_id
    out.targets[row, column:] = rules.end_id
    out.ids[row, column:] = rules.end_id
    out.weights[row, column:] = 0.0
    return _count_positions(rules, out, row, column, out.tokens.shape[1] - column, used)


@compiled
def _fill(table, rules, out, streams, segments):
    """Write all rows; returns the total weight, or -1 for damage, which `out.damage` describes."""
    offsets, begins, sizes = segments
    total, used, sequence = np.int64(0), np.int64(0), out.tokens.shape[1]
    for row in range(streams.size):
        column = np.int64(0)
        for s in range(offsets[row], offsets[row + 1]):
            weight, used = _fill_segment(table, rules, out, row, column, streams[row], begins[s], sizes[s], used)
            if weight < 0:
                return weight
            total += weight
            column += sizes[s]
        if column < sequence:
            used = _pad(rules, out, row, column, used)
        if not rules.confine:
            _count(out.positions[row])
        out.pieces_end[row] = used
    return total


class RowArrays(NamedTuple):
    """Rows as `Batch` describes them, for transforms and kernels: writing here changes the batch."""

    tokens: np.ndarray  # int64 [rows, sequence]
    targets: np.ndarray
    weights: np.ndarray  # float32 [rows, sequence]
    positions: np.ndarray
    ids: np.ndarray  # int32 [rows, sequence]: a copy of the tokens, which is hashed
    pieces: np.ndarray  # int32: lengths of the pieces of all rows, padding among them
    bounds: np.ndarray  # int64 [rows + 1]: where those of each row begin
    # Empty as `RowReader` gives them: transforms alone need these two.
    used: np.ndarray  # int64 [rows]: tokens of each row, padding not counted
    prefixes: np.ndarray  # int32: as `pieces`, leading tokens that are seen in both directions


_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of text."""

    arrays: RowArrays
    document_lengths: list[tuple[int, ...]]
    total_weight: int


class RowReader:
    """Reads rows of several streams of one corpus."""

    def __init__(self, corpus: Corpus, streams: Sequence[Stream], *, sequence: int, document_mask: bool) -> None:
        self._sequence = sequence
        self._shards = ShardTable(corpus, streams)
        end_counts = corpus.end_id == corpus.delimiter_id
        self._rules = _Rules(corpus.wide, corpus.end_id, end_counts, document_mask, corpus.vocab_size)

    def read(self, streams: Int64[np.ndarray, " rows"], segments: Segments) -> Rows:
        """Rows made of `segments`, each of the stream with number `streams[row]`.

        IntegrityError for a damaged block, a token id outside the vocabulary, or document ends that do not ascend.
        """
        count, sequence, confine = len(streams), self._sequence, self._rules.confine
        tokens, targets, positions = np.empty((3, count, sequence), np.int64)
        weights = np.empty((count, sequence), np.float32)
        ids = np.empty((count, sequence), np.int32)
        pieces = np.empty(count * sequence if confine else 0, np.int32)  # only pages that are written cost memory
        bounds, damage = np.zeros(count + 1, np.int64), np.empty(2, np.int64)
        out = _Out(tokens, targets, weights, positions, ids, pieces, bounds[1:], damage)
        while (total := _fill(self._shards.table, self._rules, out, streams, segments)) < 0:
            if damage[1] != UNCHECKED:
                raise self._shards.damage(*damage.tolist())
            self._shards.check(np.repeat(streams, np.diff(segments[0])), segments[1], segments[2])
        if not confine:
            pieces, bounds = np.full(count, sequence, np.int32), np.arange(count + 1)
        lengths = tuples(pieces, bounds) if confine else [(sequence,)] * count
        arrays = RowArrays(tokens, targets, weights, positions, ids, pieces, bounds, _NONE, _NONE)
        return Rows(arrays, lengths, int(total))


def tuples(values: np.ndarray, bounds: Int64[np.ndarray, " rows+1"]) -> list[tuple[int, ...]]:
    """The values of each row, which begin at its bound; the first bound is 0."""
    edges = bounds.tolist()
    flat = values[: edges[-1]].tolist()
    return [tuple(flat[first:end]) for first, end in itertools.pairwise(edges)]
