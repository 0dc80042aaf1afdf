"""Pack plans of encoder-decoders: spans of a stream that make rows whose source and target fit.

A piece of text grows by sentinels and an end token, so rows are filled by the lengths of source and target: one pass
over the documents in order cuts from each as much as the row still holds on both sides. The row's component of a
mixture decides how much that is, so sources are full under any objective (T5's `random_spans_helper`, by document).
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import xxhash
from jaxtyping import Int64

from hornbook.data.batch_builder import SampleRefs
from hornbook.data.corpus import Stream
from hornbook.data.objectives.pairs import NoiseTable, Roles, pair_sizes
from hornbook.data.order.random_keys import choose, key_of_row
from hornbook.data.packing.plan import PlanSet, Segments, TablePlan, kept_table, stream_ends
from hornbook.kernels.compiled import compiled, inlined

VERSION = 1
"""Part of every plan's key: raise it when the same documents would be packed differently."""

SHORTEST = 2
"""A piece of one token leaves nothing to see; such ends of documents are left out."""


@inlined
def longest_piece(noises, roles, component, most, source_room, target_room):
    """Tokens of the longest piece, at most `most`, whose source and target fit; below `SHORTEST` none does."""
    low, high = SHORTEST - 1, min(most, source_room + target_room)
    middle = high  # most ends of documents fit whole
    while low < high:
        source, target = pair_sizes(noises, roles, component, middle)
        if source <= source_room and target <= target_room:
            low = middle
        else:
            high = middle - 1
        middle = (low + high + 1) // 2
    return low


@compiled
def _pack(noises, roles, key, ends, head, tail, sequence, table):
    """Rows, first tokens and lengths of all pieces into `table` (of size 0: only count); returns their number."""
    count, row, begin = 0, np.int64(0), np.int64(0)
    component = choose(key_of_row(key, row), noises.bounds)
    source_room = target_room = sequence
    for document in range(ends.size):
        at, end = begin + head, ends[document] - tail
        begin = ends[document]
        while end - at >= SHORTEST:
            length = longest_piece(noises, roles, component, end - at, source_room, target_room)
            if length < SHORTEST:
                row += 1
                component = choose(key_of_row(key, row), noises.bounds)
                source_room = target_room = sequence
                continue
            if table.size:
                table[0, count], table[1, count], table[2, count] = row, at, length
            source, target = pair_sizes(noises, roles, component, length)
            source_room, target_room = source_room - source, target_room - target
            count, at = count + 1, at + length
    return count


@compiled
def _source_tokens(noises, roles, key, table):
    total = 0
    for p in range(table.shape[1]):
        component = choose(key_of_row(key, table[0, p]), noises.bounds)
        total += pair_sizes(noises, roles, component, table[2, p])[0]
    return total


@compiled
def raw_length(noises, roles, component, sequence):
    """Tokens of text that become a source and a target of at most `sequence` tokens; below 2 where none do."""
    return longest_piece(noises, roles, component, 4 * sequence, sequence, sequence)


def build_pair_plan(
    stream: Stream,
    sequence: int,
    noises: NoiseTable,
    roles: Roles,
    key: np.uint64,
    *,
    document_mask: bool,
    cache: Path | None = None,
) -> TablePlan:
    """Plan of one stream; neither side of a row is longer than `sequence`.

    `key` chooses the component of each row. Without `document_mask` all documents are one text, delimiters and all.
    `cache`: the folder where the table is kept, if writable.
    """
    ends = stream_ends(stream) if document_mask else np.array([stream.tokens], np.int64)
    head = int(document_mask)
    tail = int(document_mask and roles.begin >= 0)
    name = _name(stream, sequence, noises, roles, key, head, tail, None)  # None: names of kept tables stay

    def build() -> Int64[np.ndarray, "3 pieces"]:
        counting = np.empty((3, 0), np.int64)
        table = np.empty((3, _pack(noises, roles, key, ends, head, tail, sequence, counting)), np.int64)
        if table.size:
            _pack(noises, roles, key, ends, head, tail, sequence, table)
        return table

    table, content = kept_table(cache, f"pairs-{name}", build)
    return TablePlan(table, sequence, int(_source_tokens(noises, roles, key, table)), f"{name}{content}")


def _name(stream: Stream, sequence: int, noises: NoiseTable, roles: Roles, key: np.uint64, *rest: int | None) -> str:
    shapes = [noises.bounds, noises.infills, noises.rates, noises.means, noises.modes >= 0]
    several = key if len(noises.bounds) > 1 else 0
    facts = [VERSION, sequence, roles.begin >= 0, several, *rest, *(shape.tolist() for shape in shapes)]
    return xxhash.xxh3_64_hexdigest(f"{stream.digest} {facts}".encode())


class PairPlans:
    """Plans of some streams. Those of a mixture are others in each epoch, so that no text keeps its component for ever.

    A stream has the same number of rows in every epoch; surplus rows of a later epoch are left out, missing ones are
    filled with its first rows once more.
    """

    def __init__(self, build: Callable[[int, int], TablePlan], streams: int, *, vary: bool) -> None:
        """`build` gives the plan of (number of a stream, epoch); `vary`: it depends on the epoch."""
        self.first: Sequence[TablePlan] = [build(stream, 0) for stream in range(streams)]
        self._plan_set = None if vary else PlanSet(self.first)
        self._build = lru_cache(maxsize=2 * streams)(build)

    def segments(self, refs: SampleRefs) -> tuple[Segments, Int64[np.ndarray, " n"]]:
        """Segments of each row, and its number in the plan of its epoch."""
        if self._plan_set is not None:
            return self._plan_set.segments(refs.sources, refs.rows), refs.rows
        names, which = np.unique(refs.epochs * len(self.first) + refs.sources, return_inverse=True)
        plans = [self._plan(*divmod(name, len(self.first))) for name in names.tolist()]
        rows = refs.rows % np.array([plan.rows for plan in plans])[which]
        return PlanSet(plans).segments(which, rows), rows

    def _plan(self, epoch: int, stream: int) -> TablePlan:
        return self._build(stream, epoch) if epoch else self.first[stream]
