"""The join of data and training backwards: at which positions of the order a document, or a source, was read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int64

from hornbook.data.corpus import Stream
from hornbook.data.global_index import GlobalIndex

_BLOCK = 1 << 18
"""Positions looked at together."""


@dataclass(frozen=True, slots=True)
class Found:
    """A document in token shards."""

    source: str
    split: str
    shard: str
    document: int
    """Its row in the shard."""
    id: str
    origin: str


def find_documents(streams: Iterable[tuple[str, Stream]], name: str) -> list[Found]:
    """Documents whose id or origin is `name`, in (split, stream)s."""
    found = []
    for split, stream in streams:
        for shard in stream.shards:
            table = pq.read_table(shard.path(".docs.parquet"), columns=["id", "origin"])
            mask = (_strings(table, "id") == name) | (_strings(table, "origin") == name)
            for row in np.flatnonzero(mask).tolist():
                each = table.slice(row, 1).to_pylist()[0]
                found.append(Found(stream.source, split, shard.name, row, str(each["id"]), str(each["origin"])))
    return found


def _strings(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy().astype(object)


def all_streams(index: GlobalIndex) -> list[tuple[str, Stream]]:
    """(split, stream) of everything in the data: what training reads, in the form it reads, and the rest."""
    rest = [stream for name, stream in index.corpus.train.items() if name not in index.sources]
    held_out = [("validation", stream) for stream in index.corpus.validation.values()]
    return [*(("train", stream) for stream in [*index.streams, *rest]), *held_out]


def positions_of_documents(index: GlobalIndex, found: Sequence[Found], samples: int) -> Int64[np.ndarray, " n"]:
    """Positions below `samples` whose rows hold a token of one of the documents (of the training split)."""
    stretches = {number: _stretches(stream, found) for number, stream in enumerate(index.streams)}
    wanted = np.array([number for number, each in stretches.items() if len(each)], np.int64)
    parts = [np.zeros(0, np.int64)]
    for first in range(0, samples if len(wanted) else 0, _BLOCK):
        positions = np.arange(first, min(first + _BLOCK, samples))
        draws = index.draws(positions)
        chosen = np.flatnonzero(np.isin(draws.sources, wanted))
        bounds, begins, sizes = index.segments(positions[chosen])
        owners = np.repeat(np.arange(len(chosen)), np.diff(bounds))
        for number in wanted.tolist():
            mine = draws.sources[chosen][owners] == number
            hit = np.zeros(len(owners), bool)
            for begin, end in stretches[number].tolist():
                hit |= mine & (begins < end) & (begins + sizes > begin)
            parts.append(positions[chosen[np.unique(owners[hit])]])
    return np.unique(np.concatenate(parts))


def _stretches(stream: Stream, found: Sequence[Found]) -> Int64[np.ndarray, "n 2"]:
    """Where in the stream the documents are: first token and end."""
    places = []
    for start, shard in zip(stream.starts.tolist(), stream.shards, strict=False):
        for each in found:
            if each.shard == shard.name:
                first = int(shard.ends[each.document - 1]) if each.document else 0
                places.append((start + first, start + int(shard.ends[each.document])))
    return np.array(places, np.int64).reshape(-1, 2)


def first_position(index: GlobalIndex, source: str, samples: int) -> int | None:
    """The first position below `samples` that is drawn from a source."""
    if source not in index.sources:
        return None
    number = index.sources.index(source)
    for first in range(0, samples, _BLOCK):
        positions = np.arange(first, min(first + _BLOCK, samples))
        hits = np.flatnonzero(index.draws(positions).sources == number)
        if len(hits):
            return int(positions[hits[0]])
    return None
