"""The shards of several streams as kernels reach them, by a table of addresses, and the labels beside their tokens.

A pass over rows costs the same for one shard or ten thousand. A `ShardTable` keeps the maps alive. A kernel that
meets a block that was not yet compared with its checksum stops and says so; then all blocks that it is about to read
are compared, in the thread that makes batches ahead, and it starts again. Afterwards a check reads one byte.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64
from numba import carray  # pyright: ignore[reportPrivateImportUsage]

from hornbook.data.corpus import Corpus, Stream
from hornbook.data.shards.shard import TokenShard
from hornbook.errors import IntegrityError
from hornbook.kernels.compiled import compiled, count_up_to, inlined, pointer
from hornbook.text.tokenizer.shards import BLOCK_BYTES


class Addresses(NamedTuple):
    """Where the shards are. Each stream has one entry per shard and a last one for its end."""

    first: np.ndarray  # int64 [streams + 1]: the first entry of each stream
    starts: np.ndarray  # int64 [entries]: offset of the shard in its stream; in the last entry, the stream's length
    documents: np.ndarray  # int64 [entries]
    data: np.ndarray  # uint64 [entries]: address of the token ids
    ends: np.ndarray  # uint64 [entries]: address of the END offsets
    sound: np.ndarray  # uint64 [entries]: address of a byte per block: not 0 if it was compared with its checksum


_MOST_FOUND = 1024
"""Blocks that are listed at once; the rest is listed when the kernel stops again."""
_SHIFT = BLOCK_BYTES.bit_length() - 1
ENDS_DESCEND, UNCHECKED = -1, -2
"""Why a kernel stops at a shard: its ends do not ascend, or a block was not compared yet."""


@inlined
def first_unchecked(table, wide, entry, local, count):
    """The first block of `count` tokens from `local` on, and of the one behind them, that was not compared; else -1."""
    shift = _SHIFT - 2 if wide else _SHIFT - 1
    size = table.starts[entry + 1] - table.starts[entry]
    flags = carray(pointer(table.sound[entry]), ((size - 1 >> shift) + 1,), np.uint8)
    for block in range(local >> shift, (min(local + count, size - 1) >> shift) + 1):
        if flags[block] == 0:
            return np.int64(block)
    return np.int64(-1)


@compiled
def _find_unchecked(table, wide, streams, begins, sizes, out):
    """Write (entry, block) of blocks in the spans that were not compared into `out` [2, most]; returns their number."""
    used = 0
    shift = _SHIFT - 2 if wide else _SHIFT - 1
    for s in range(begins.size):
        position, left = begins[s], sizes[s]
        entry = table.first[streams[s]] - 1
        last = table.first[streams[s] + 1] - 1
        entry += np.searchsorted(table.starts[table.first[streams[s]] : last], position, side="right")
        while left > 0:
            size, local = table.starts[entry + 1] - table.starts[entry], position - table.starts[entry]
            count = min(left, size - local)
            flags = carray(pointer(table.sound[entry]), ((size - 1 >> shift) + 1,), np.uint8)
            for block in range(local >> shift, (min(local + count, size - 1) >> shift) + 1):
                if flags[block] == 0:
                    out[0, used], out[1, used] = entry, block
                    used += 1
                    if used == out.shape[1]:
                        return used
            position, left, entry = position + count, left - count, entry + 1
    return used


@compiled
def _gather(table, wide, vocab, streams, begins, sizes, out, damage):
    """Copy spans of streams one after the other; returns whether all ids are below `vocab`."""
    column = np.int64(0)
    for s in range(begins.size):
        position, left = begins[s], sizes[s]
        entry = table.first[streams[s]] - 1
        last = table.first[streams[s] + 1] - 1
        entry += count_up_to(table.starts[table.first[streams[s]] : last], position)
        while left > 0:
            size, local = table.starts[entry + 1] - table.starts[entry], position - table.starts[entry]
            count = min(left, size - local)
            if first_unchecked(table, wide, entry, local, count) >= 0:
                damage[0], damage[1] = entry, UNCHECKED
                return False
            largest = np.int64(0)
            if wide:
                words = carray(pointer(table.data[entry]), (size,), np.uint32)
                for j in range(count):
                    out[column + j] = words[local + j]
                    largest = max(largest, np.int64(words[local + j]))
            else:
                halves = carray(pointer(table.data[entry]), (size,), np.uint16)
                for j in range(count):
                    out[column + j] = halves[local + j]
                    largest = max(largest, np.int64(halves[local + j]))
            if largest >= vocab:
                damage[0], damage[1] = entry, largest
                return False
            column, position, left, entry = column + count, position + count, left - count, entry + 1
    return True


class ShardTable:
    """The shards of some streams of one corpus."""

    def __init__(self, corpus: Corpus, streams: Sequence[Stream]) -> None:
        self._corpus, self._streams = corpus, list(streams)
        self._shards = [shard for stream in streams for shard in (*stream.shards, None)]
        self.table = Addresses(
            np.cumsum([0] + [len(stream.shards) + 1 for stream in streams], dtype=np.int64),
            np.concatenate([stream.starts for stream in streams]),
            np.array([shard.documents if shard else 0 for shard in self._shards], np.int64),
            self._addresses(lambda shard: shard.mapped),
            self._addresses(lambda shard: shard.mapped_ends),
            self._addresses(lambda shard: shard.sound),
        )

    def gather(
        self, streams: Int64[np.ndarray, " n"], begins: Int64[np.ndarray, " n"], sizes: Int64[np.ndarray, " n"]
    ) -> Int32[np.ndarray, " tokens"]:
        """Token ids of spans, each of the stream with number `streams[i]`, one after the other.

        Raises IntegrityError for a damaged block, or a token id outside the vocabulary.
        """
        out, damage = np.empty(int(sizes.sum()), np.int32), np.empty(2, np.int64)
        corpus = self._corpus
        while not _gather(self.table, corpus.wide, corpus.vocab_size, streams, begins, sizes, out, damage):
            if damage[1] != UNCHECKED:
                raise self.damage(*damage.tolist())
            self.check(streams, begins, sizes)
        return out

    def check(
        self, streams: Int64[np.ndarray, " n"], begins: Int64[np.ndarray, " n"], sizes: Int64[np.ndarray, " n"]
    ) -> None:
        """Compare blocks that the spans touch with their checksums. IntegrityError if one differs.

        A shard's document ends are compared with its first block.
        """
        found = np.empty((2, max(_MOST_FOUND, len(begins))), np.int64)
        used = _find_unchecked(self.table, self._corpus.wide, streams, begins, sizes, found)
        for entry, block in found[:, :used].T.tolist():
            shard = self._shards[entry]
            assert shard is not None
            if not shard.sound[block]:
                shard.check_block(block)

    def _addresses(self, array: Callable[[TokenShard], np.ndarray]) -> np.ndarray:
        """Address of an array of each entry's shard."""
        return np.array([array(shard).ctypes.data if shard else 0 for shard in self._shards], np.uint64)

    def documents(self, stream: int, begin: int, size: int) -> list[tuple[int, int, int, int]]:
        """Documents in a span of a stream: (number of the shard, document in it, first token in it, length)."""
        starts, shards, found = self._streams[stream].starts, self._streams[stream].shards, []
        number = int(np.searchsorted(starts[:-1], begin, side="right")) - 1
        while size > 0:
            shard, local = shards[number], begin - int(starts[number])
            document = int(np.searchsorted(shard.ends, np.uint64(local), side="right"))
            while size > 0 and local < shard.tokens:
                first = int(shard.ends[document - 1]) if document else 0
                length = min(size, int(shard.ends[document]) - local)
                found.append((number, document, local - first, length))
                local, begin, size, document = local + length, begin + length, size - length, document + 1
            number += 1
        return found

    def damage(self, entry: int, largest: int) -> IntegrityError:
        """The error for a shard: a token id outside the vocabulary or, if it is negative, ends that do not ascend."""
        shard = self._shards[entry]
        assert shard is not None
        if largest < 0:
            return IntegrityError(
                f"{shard.path('.idx')}: document ends do not ascend to {shard.tokens}: {shard.remedy}"
            )
        vocab = self._corpus.vocab_size
        return IntegrityError(
            f"{shard.path('.bin')}: found token id {largest}, expected ids below {vocab}: {shard.remedy}"
        )


class LabelTable:
    """Labels beside the tokens of some streams of a labelled set."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._streams = list(streams)
        self._outputs = max((shard.outputs for stream in streams for shard in stream.shards), default=1)

    def at(self, streams: Int64[np.ndarray, " n"], places: Int64[np.ndarray, " n"]) -> Float32[np.ndarray, "n outputs"]:
        """Label of token `places[i]` of stream `streams[i]`; NaN where it has none."""
        found = np.empty((len(places), self._outputs), np.float32)
        for number, stream in enumerate(self._streams):
            of_stream = np.flatnonzero(streams == number)
            shards = np.searchsorted(stream.starts, places[of_stream], side="right") - 1
            for shard in np.unique(shards):
                labels = stream.shards[shard].labels
                assert labels is not None
                some = of_stream[shards == shard]
                found[some] = labels[places[some] - stream.starts[shard]]
        return found
