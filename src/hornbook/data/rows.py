"""Rows as tensors: copies tokens from the mapped shards and marks where documents begin and end.

One compiled pass per global batch finds the documents of each row by binary search in the END offsets and
writes inputs, targets, weights and positions. The shards are reached through a table of their addresses, so
that the pass costs the same for one shard or ten thousand; `RowReader` keeps the maps alive.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numba
import numpy as np
import torch
import xxhash
from jaxtyping import Int64
from numba.core import types
from numba.extending import intrinsic
from torch import Tensor

from hornbook.data.compiled import compiled
from hornbook.data.corpus import Corpus, Stream
from hornbook.data.plan import Segments
from hornbook.errors import IntegrityError


@intrinsic
def _pointer(_context, address):  # pyright: ignore[reportUnknownParameterType]
    """An address as a pointer that numba.carray accepts."""

    def generate(context, builder, _signature, arguments):
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.uint64), generate


@compiled
def _copy(data, first, length, follows, end_id, tokens, targets):
    """Inputs and targets of one piece; `follows`: the document goes on after it. Returns the largest id."""
    largest = np.int64(0)
    for j in range(length):
        tokens[j] = data[first + j]
    for j in range(length - 1):
        targets[j] = data[first + j + 1]
    targets[length - 1] = data[first + length] if follows else end_id
    for j in range(length):
        largest = max(largest, np.int64(tokens[j]))
    return largest


@compiled
def _fill(
    wide, data_address, ends_address, starts, documents, first_shard,
    sources, offsets, begins, sizes, end_id, end_counts, confine, vocab,
    tokens, targets, weights, positions, ids, pieces, pieces_end, status,
):  # fmt: skip
    """Fill all rows; returns the total weight, or -1 with status = (shard, what was found)."""
    sequence = tokens.shape[1]
    total = np.int64(0)
    used = 0
    for i in range(sources.size):
        column = 0
        for s in range(offsets[i], offsets[i + 1]):
            position, left = begins[s], sizes[s]
            shard = np.searchsorted(
                starts[first_shard[sources[i]] : first_shard[sources[i] + 1]], position, side="right"
            )
            shard += first_shard[sources[i]] - 1
            while left > 0:
                # `starts` has one entry more than shards per source: the entry after a shard is its end.
                length = starts[shard + 1] - starts[shard]
                local = position - starts[shard]
                ends = numba.carray(_pointer(ends_address[shard]), (documents[shard],), np.uint64)
                document = np.searchsorted(ends, np.uint64(local), side="right")
                while left > 0 and local < length:
                    if document >= ends.size or np.int64(ends[document]) <= local or np.int64(ends[document]) > length:
                        status[0], status[1] = shard, -1
                        return np.int64(-1)
                    end = np.int64(ends[document])
                    piece = min(left, end - local)
                    follows = local + piece < end
                    stop = column + piece
                    if wide:
                        data = numba.carray(_pointer(data_address[shard]), (length,), np.uint32)
                        largest = _copy(
                            data, local, piece, follows, end_id, tokens[i, column:stop], targets[i, column:stop]
                        )
                    else:
                        data = numba.carray(_pointer(data_address[shard]), (length,), np.uint16)
                        largest = _copy(
                            data, local, piece, follows, end_id, tokens[i, column:stop], targets[i, column:stop]
                        )
                    if largest >= vocab:
                        status[0], status[1] = shard, largest
                        return np.int64(-1)
                    weights[i, column:stop] = 1.0
                    total += piece
                    if not follows and not end_counts:
                        weights[i, stop - 1] = 0.0
                        total -= 1
                    if confine:
                        for j in range(piece):
                            positions[i, column + j] = j
                        pieces[used] = piece
                        used += 1
                    column, local, position, left = stop, local + piece, position + piece, left - piece
                    document += 1
                shard += 1
        if column < sequence:
            tokens[i, column:] = end_id
            targets[i, column:] = end_id
            weights[i, column:] = 0.0
            for j in range(sequence - column):
                positions[i, column + j] = j
            if confine:
                pieces[used] = sequence - column
                used += 1
        if not confine:
            for j in range(sequence):
                positions[i, j] = j
        for j in range(sequence):
            ids[i, j] = tokens[i, j]
        pieces_end[i] = used
    return total


@dataclass(frozen=True, slots=True)
class Rows:
    """Tensors of some rows, as `Batch` describes them."""

    tokens: Tensor
    targets: Tensor
    weights: Tensor
    positions: Tensor
    lengths: list[tuple[int, ...]]
    total_weight: int
    token_hash: str


class RowReader:
    """Reads rows of the streams of one split."""

    def __init__(self, corpus: Corpus, streams: Sequence[Stream], *, sequence: int, document_mask: bool) -> None:
        self._streams = list(streams)
        self._corpus, self._sequence, self._confine = corpus, sequence, document_mask
        self._end_counts = corpus.end_id == corpus.delimiter_id
        shards = [(*stream.shards, None) for stream in streams]  # None: the entry that holds the stream's length
        flat = [shard for group in shards for shard in group]
        self._shards = flat
        self._first_shard = np.cumsum([0] + [len(group) for group in shards], dtype=np.int64)
        self._starts = np.concatenate([stream.starts for stream in streams])
        self._documents = np.array([shard.documents if shard else 0 for shard in flat], np.int64)
        self._data = np.array([shard.data.ctypes.data if shard else 0 for shard in flat], np.uint64)
        self._ends = np.array([shard.ends.ctypes.data if shard else 0 for shard in flat], np.uint64)
        self._wide = any(shard.data.itemsize == 4 for shard in flat if shard)

    def read(self, sources: Int64[np.ndarray, " rows"], segments: Segments) -> Rows:
        """Rows made of `segments`, each of the stream with number `sources[row]`.

        Raises:
            IntegrityError: a token id outside the vocabulary, or document ends that do not ascend.
        """
        count, sequence = len(sources), self._sequence
        offsets, begins, sizes = segments
        tokens, targets, positions = (torch.empty(count, sequence, dtype=torch.int64) for _ in range(3))
        weights = torch.empty(count, sequence, dtype=torch.float32)
        ids = np.empty((count, sequence), np.int32)
        pieces = np.empty(count * sequence if self._confine else 0, np.int32)  # pages are touched only where written
        pieces_end, status = np.empty(count, np.int64), np.zeros(2, np.int64)
        total = _fill(
            self._wide, self._data, self._ends, self._starts, self._documents, self._first_shard,
            sources, offsets, begins, sizes,
            self._corpus.end_id, self._end_counts, self._confine, self._corpus.vocab_size,
            tokens.numpy(), targets.numpy(), weights.numpy(), positions.numpy(), ids, pieces, pieces_end, status,
        )  # fmt: skip
        if total < 0:
            raise self._damage(*status.tolist())
        lengths = self._lengths(pieces, pieces_end) if self._confine else [(sequence,)] * count
        return Rows(tokens, targets, weights, positions, lengths, int(total), xxhash.xxh3_64_hexdigest(ids))

    def documents(self, source: int, begin: int, size: int) -> list[tuple[int, int, int, int]]:
        """Documents in a stretch of a stream: (number of the shard, document in it, first token in it, length)."""
        stream, found = self._streams[source], []
        number = int(np.searchsorted(stream.starts[:-1], begin, side="right")) - 1
        while size > 0:
            shard, local = stream.shards[number], begin - int(stream.starts[number])
            document = int(np.searchsorted(shard.ends, np.uint64(local), side="right"))
            while size > 0 and local < shard.tokens:
                first = int(shard.ends[document - 1]) if document else 0
                length = min(size, int(shard.ends[document]) - local)
                found.append((number, document, local - first, length))
                local, begin, size, document = local + length, begin + length, size - length, document + 1
            number += 1
        return found

    @staticmethod
    def _lengths(pieces: np.ndarray, ends: np.ndarray) -> list[tuple[int, ...]]:
        flat, bounds = pieces[: ends[-1]].tolist() if len(ends) else [], [0, *ends.tolist()]
        return [tuple(flat[first:end]) for first, end in zip(bounds, bounds[1:], strict=False)]

    def _damage(self, shard: int, largest: int) -> IntegrityError:
        damaged = self._shards[shard]
        assert damaged is not None
        remedy = "restore the file, or write the shards again with `hornbook tokenize`"
        if largest < 0:
            return IntegrityError(
                f"{damaged.path('.idx')}: ends of documents do not ascend up to {damaged.tokens}: {remedy}"
            )
        return IntegrityError(
            f"{damaged.path('.bin')}: found token id {largest}, expected ids below {self._corpus.vocab_size}: {remedy}"
        )
