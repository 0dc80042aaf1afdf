"""Pack plans of labelled sets: rows of whole documents, as many as fit, in an order that is drawn once.

A document that is longer than a row is cut at its end. Sets are often sorted by label, so documents are shuffled
before they are packed; rows are shuffled anew in each pass like all others.
"""

from collections.abc import Callable

import numpy as np
import xxhash
from jaxtyping import Int64

from hornbook.data.corpus import Stream
from hornbook.data.order.random_keys import shuffle
from hornbook.data.packing.packing import VERSION, best_fit
from hornbook.data.packing.plan import TablePlan, stream_ends
from hornbook.data.shards.shard_table import LabelTable

Documents = Int64[np.ndarray, " documents"]
Pack = Callable[[Documents], Int64[np.ndarray, "2 pieces"]]
"""(row, place in the list) of each document of a list."""


def document_plan(
    stream: Stream, key: np.uint64 | None, pack: Pack, name: str, *, balance: bool = False
) -> tuple[Int64[np.ndarray, "3 pieces"], str]:
    """Table of pieces (row, first token, length of the whole document) and its digest.

    `key`: the order is drawn from it; None keeps that of the stream. `pack`: see `Pack`. `balance`: each label as often
    as the commonest; for one label per text.
    """
    ends = stream_ends(stream)
    begins = np.concatenate([[0], ends[:-1]])
    chosen = np.arange(len(ends))
    state = np.uint64(0) if key is None else key
    if balance:
        chosen, state = _balanced(LabelTable([stream]).at(np.zeros_like(chosen), begins[chosen])[:, 0], chosen, state)
    if key is not None:
        shuffle(chosen, len(chosen), state)
    rows, places = pack(chosen)
    documents = chosen[places]
    table = np.stack([rows, begins[documents], (ends - begins)[documents]])
    content = xxhash.xxh3_64_hexdigest(np.ascontiguousarray(table).data)
    return table, xxhash.xxh3_128_hexdigest(f"{name} {VERSION} {stream.digest} {content}".encode())


def _balanced(labels: np.ndarray, chosen: Documents, state: np.uint64) -> tuple[Documents, np.uint64]:
    """The documents with those of rarer labels repeated; it is drawn which of them get one repetition more."""
    groups = [chosen[labels == label] for label in np.unique(labels)]
    most = max((len(group) for group in groups), default=0)
    for group in groups:
        state = np.uint64(shuffle(group, len(group), state))
    return np.concatenate([np.resize(group, most) for group in groups] or [chosen]), state


def row_plan(
    stream: Stream, sequence: int, key: np.uint64 | None, *, balance: bool = False, answers: bool = False
) -> TablePlan:
    """Plan of rows of `sequence` tokens, filled by best fit with documents of at most as many.

    answers: leave out documents whose first labelled token is beyond a row: the rest of them has nothing to learn.
    """
    ends = stream_ends(stream)
    sizes = np.diff(ends, prepend=0)
    learned = first_labels(stream) < sequence if answers else np.ones(len(sizes), bool)

    def pack(chosen: Documents) -> Int64[np.ndarray, "2 pieces"]:
        kept = np.flatnonzero(learned[chosen])
        ends = np.cumsum(np.minimum(sizes[chosen[kept]], sequence))
        rows, begins, _ = best_fit(ends, sequence)
        return np.stack([rows, kept[np.searchsorted(ends, begins, side="right")]])

    table, digest = document_plan(stream, key, pack, f"labels {sequence}", balance=balance)
    table[2] = np.minimum(table[2], sequence)
    plan = TablePlan(table, sequence, int(table[2].sum()), digest)
    plan.cut, plan.dropped = int(np.count_nonzero(learned & (sizes > sequence))), int(np.count_nonzero(~learned))
    return plan


def first_labels(stream: Stream) -> Int64[np.ndarray, " documents"]:
    """Place of the first labelled token of each document, counted in it; its length where there is none."""
    ends = stream_ends(stream)
    found = np.diff(ends, prepend=0)
    for shard, start in zip(stream.shards, stream.starts, strict=False):
        labels = shard.labels
        assert labels is not None
        places = np.flatnonzero(~np.isnan(labels[:, 0])) + start
        documents = np.searchsorted(ends, places, side="right")
        each, first = np.unique(documents, return_index=True)
        found[each] = places[first] - (ends[each] - found[each])
    return found
