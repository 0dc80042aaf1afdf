"""Prompts and answers as pairs for encoder-decoders: the encoder reads the prompt, the decoder writes the answer.

Documents are packed in the order that was drawn for them, as many in a row as fit on both sides. A side that is longer
than a row is cut at its end.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from hornbook.data.batch_builder import BatchBuilder, BuildContext, BuiltBatch, SampleRefs
from hornbook.data.corpus import Stream
from hornbook.data.labelled.plan import Documents, document_plan
from hornbook.data.objectives.pair_rows import pairs_in_microbatches
from hornbook.data.objectives.pairs import Pairs
from hornbook.data.packing.plan import Plan, TablePlan, stream_ends
from hornbook.data.shards.shard_table import LabelTable, ShardTable
from hornbook.data.vocabulary import Vocabulary


def answer_plan(stream: Stream, sequence: int, around: int, key: np.uint64 | None) -> TablePlan:
    """Plan of rows whose prompts, and whose answers, are at most `sequence` tokens; each side has `around` more."""
    ends = stream_ends(stream)
    begins = np.concatenate([[0], ends[:-1]])
    labels = LabelTable([stream])
    answers = np.array([_answer_place(labels, 0, *span) for span in zip(begins, ends - begins, strict=True)], np.int64)
    prompts = np.minimum(answers - 1 + around, sequence)
    written = np.minimum(ends - begins - answers + around, sequence)

    def pack(chosen: Documents) -> Int64[np.ndarray, "2 pieces"]:
        rows, row, room = [], -1, (0, 0)
        for prompt, answer in zip(prompts[chosen].tolist(), written[chosen].tolist(), strict=True):
            if row < 0 or prompt > room[0] or answer > room[1]:
                row, room = row + 1, (sequence, sequence)
            room = room[0] - prompt, room[1] - answer
            rows.append(row)
        return np.stack([np.array(rows, np.int64), np.arange(len(chosen))])

    table, digest = document_plan(stream, key, pack, f"seq2seq {sequence} {around}")
    kept = np.searchsorted(ends, table[1], side="right")
    return TablePlan(table, sequence, int(prompts[kept].sum()), digest)


def _answer_place(labels: LabelTable, stream: int, begin: int, size: int) -> int:
    """Index of the first token of the answer in a document of `size` tokens from `begin` on."""
    places = begin + np.arange(size)
    return int(np.argmax(~np.isnan(labels.at(np.full_like(places, stream), places)[:, 0])))


class AnswerPairs(BatchBuilder):
    """Builds batches of prompts and answers; `plans` are of `answer_plan`."""

    def __init__(self, context: BuildContext, plans: Sequence[Plan], vocabulary: Vocabulary, start: int) -> None:
        """`start`: first token of the decoder's input."""
        super().__init__(plans)
        self._shards, self._labels = ShardTable(context.corpus, context.streams), LabelTable(context.streams)
        self._begin = [] if vocabulary.begin_id is None else [vocabulary.begin_id]
        self._own_end = vocabulary.begin_id is not None
        self._end, self._pad, self._start = vocabulary.end_id, vocabulary.pad_id, start
        self._sequence = context.sequence

    def build(self, refs: SampleRefs, micro_batch: int) -> BuiltBatch:
        bounds, begins, sizes = self.segments(refs)
        streams = np.repeat(refs.sources, np.diff(bounds))
        raw = np.split(self._shards.gather(streams, begins, sizes), np.cumsum(sizes)[:-1])
        both = [self._pair(*each) for each in zip(raw, streams.tolist(), begins.tolist(), strict=True)]
        lengths = np.array([[len(source) for source, _ in both], [len(target) - 1 for _, target in both]], np.int64)
        sources, targets = (np.concatenate(side).astype(np.int32) for side in zip(*both, strict=True))
        pairs = Pairs(sources, targets, lengths, bounds)

        return pairs_in_microbatches(pairs, refs, micro_batch, self._pad)

    def _pair(self, document: np.ndarray, stream: int, begin: int) -> tuple[np.ndarray, np.ndarray]:
        """Source of a document, and the start token followed by the targets."""
        place = _answer_place(self._labels, stream, begin, len(document))
        answer = document[place : len(document) - self._own_end]
        room = self._sequence - 1
        source = np.array([*self._begin, *document[1:place]])[:room]
        target = np.array([*self._begin, *answer])[:room]
        return np.append(source, self._end), np.concatenate([[self._start], target, [self._end]])
