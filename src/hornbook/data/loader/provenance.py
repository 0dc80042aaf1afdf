"""Where a document, or a source, was read in training: from its tokens back to positions of the sample order."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from hornbook.data.corpus import Stream
from hornbook.data.loader.global_index import GlobalIndex

_BLOCK = 1 << 18
"""Positions examined at once."""


@dataclass(frozen=True, slots=True)
class FoundDocument:
    """A document in token shards."""

    source: str
    split: str
    shard: str
    document: int
    """Its row in the shard."""
    id: str
    origin: str


def find_documents(streams: Iterable[tuple[str, Stream]], name: str) -> list[FoundDocument]:
    """Documents whose id or origin is `name`, in (split, stream)s."""
    found = []
    for split, stream in streams:
        for shard in stream.shards:
            table = shard.table()
            mask = (_strings(table, "id") == name) | (_strings(table, "origin") == name)
            for row in np.flatnonzero(mask).tolist():
                each = table.slice(row, 1).to_pylist()[0]
                found.append(FoundDocument(stream.source, split, shard.name, row, str(each["id"]), str(each["origin"])))
    return found


def _strings(table: pa.Table, name: str) -> np.ndarray:
    return table[name].to_numpy().astype(object)


def all_streams(index: GlobalIndex) -> list[tuple[str, Stream]]:
    """(split, stream) of all data: the streams of training as training reads them, then the rest."""
    rest = [stream for name, stream in index.corpus.train.items() if name not in index.sources]
    held_out = [("validation", stream) for stream in index.corpus.validation.values()]
    return [*(("train", stream) for stream in [*index.streams, *rest]), *held_out]


@dataclass(frozen=True, slots=True)
class Learned:
    """The positions that a run learned from, by step: 24 bytes a step, however many samples it has."""

    steps: Int64[np.ndarray, " n"]
    """Numbers of the steps that count, in order."""
    firsts: Int64[np.ndarray, " n"]
    """First position of each step."""
    ends: Int64[np.ndarray, " n"]
    """Position after the last of each step."""
    skipped: Sequence[tuple[int, int]]
    """Ranges (first, end) of positions that no step learned from."""

    @property
    def end(self) -> int:
        """The position after the last that was learned from."""
        return int(self.ends[-1]) if len(self.ends) else 0

    def step_of(self, positions: Int64[np.ndarray, " m"]) -> Int64[np.ndarray, " m"]:
        """The step that learned from each position; -1 where none did."""
        if not len(self.steps):
            return np.full(len(positions), -1)
        place = np.maximum(np.searchsorted(self.firsts, positions, side="right") - 1, 0)
        inside = (self.firsts[place] <= positions) & (positions < self.ends[place])
        for first, end in self.skipped:
            inside &= (positions < first) | (positions >= end)
        return np.where(inside, self.steps[place], -1)


def end_of(skipped: Sequence[tuple[int, int]], first: int, count: int) -> int:
    """The position after the last of `count` positions from `first` on that lie in no skipped range."""
    place = first
    for begin, end in sorted(skipped):
        if place + count <= begin:
            break
        if end > place:
            count -= max(begin - place, 0)
            place = end
    return place + count


def positions_of_documents(index: GlobalIndex, found: Sequence[FoundDocument], samples: int) -> Int64[np.ndarray, " n"]:
    """Positions below `samples` whose rows hold a token of one of the documents (of the training split)."""
    spans = {number: _spans(stream, found) for number, stream in enumerate(index.streams)}
    wanted = np.array([number for number, each in spans.items() if len(each)], np.int64)
    parts = [np.zeros(0, np.int64)]
    for first in range(0, samples if len(wanted) else 0, _BLOCK):
        positions = np.arange(first, min(first + _BLOCK, samples))
        refs = index.refs(positions)
        chosen = np.flatnonzero(np.isin(refs.sources, wanted))
        bounds, begins, sizes = index.segments(positions[chosen])
        owners = np.repeat(np.arange(len(chosen)), np.diff(bounds))
        for number in wanted.tolist():
            mine = refs.sources[chosen][owners] == number
            hit = np.zeros(len(owners), bool)
            for begin, end in spans[number].tolist():
                hit |= mine & (begins < end) & (begins + sizes > begin)
            parts.append(positions[chosen[np.unique(owners[hit])]])
    return np.unique(np.concatenate(parts))


def _spans(stream: Stream, found: Sequence[FoundDocument]) -> Int64[np.ndarray, "n 2"]:
    """First token and end, in the stream, of each of the documents."""
    places = []
    for start, shard in zip(stream.starts.tolist(), stream.shards, strict=False):
        for each in found:
            if each.shard == shard.name:
                first = int(shard.ends[each.document - 1]) if each.document else 0
                places.append((start + first, start + int(shard.ends[each.document])))
    return np.array(places, np.int64).reshape(-1, 2)


def first_step(index: GlobalIndex, source: str, learned: Learned) -> int | None:
    """The first step that learned from a source."""
    if source not in index.sources:
        return None
    number = index.sources.index(source)
    for first in range(0, learned.end, _BLOCK):
        positions = np.arange(first, min(first + _BLOCK, learned.end))
        steps = learned.step_of(positions[index.refs(positions).sources == number])
        if len(steps := steps[steps >= 0]):
            return int(steps[0])
    return None
