"""Batches of answers that are compared: all answers to a prompt in one row, each a piece of its own.

A document is a chosen and a rejected conversation, or one that is rated; its labels say where the second begins and
what is an answer (`hornbook.text.tokenizer.dialogues`). Rows are filled with whole documents, so that a loss needs no
other row; a document that is longer than a row loses ends of its answers.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import xxhash
from jaxtyping import Float32, Int64

from hornbook.data.batch import CHOSEN, MISMATCHED, REJECTED, Batch, Compared
from hornbook.data.batch_builder import BatchBuilder, BuildContext, BuiltBatch, SampleRefs
from hornbook.data.config.preferences import KTO, ORPO, Comparing, Referenced, Reward
from hornbook.data.corpus import Stream
from hornbook.data.labelled.plan import Documents, document_plan
from hornbook.data.labelled.references import read_references
from hornbook.data.order.random_keys import key_of
from hornbook.data.packing.packing import best_fit
from hornbook.data.packing.plan import Plan, TablePlan, stream_ends
from hornbook.data.packing.rows import RowArrays, Rows
from hornbook.data.packing.text_rows import in_microbatches
from hornbook.data.shards.shard_table import ShardTable
from hornbook.errors import UsageError

_NONE = np.empty(0, np.int64)


class Conversation(NamedTuple):
    """One conversation of a row."""

    begin: int
    """First token in the stream."""
    size: int
    side: int
    head: tuple[int, int] | None = None
    """First token and number of tokens of a prompt that comes from another document."""


class Answered(NamedTuple):
    """Where the conversations of a stream's documents are, and what of them fits into a row."""

    begins: Int64[np.ndarray, " documents"]
    sizes: Int64[np.ndarray, "2 documents"]
    """Tokens of the first and the second conversation, cut to what fits; 0 where there is none."""
    seconds: Int64[np.ndarray, " documents"]
    """First token of the second conversation, counted in the document."""
    prompts: Int64[np.ndarray, "2 documents"]
    """Tokens before the first answer, in each conversation."""
    rejected: np.ndarray
    """bool [documents]: the only conversation is a bad one."""
    cut: np.ndarray
    """bool [documents]"""
    others: Int64[np.ndarray, " documents"]
    """The document whose answer is read with the prompt of each, where answers are mismatched."""
    labels: Float32[np.ndarray, " tokens"]


def find_answers(stream: Stream, sequence: int, *, mismatched: bool) -> Answered:
    """Read the labels of a stream. `mismatched`: each prompt needs room for the answer to another."""
    ends = stream_ends(stream)
    parts = [shard.labels for shard in stream.shards]
    labels = np.concatenate([part[:, 0] for part in parts if part is not None] or [np.empty(0, np.float32)])
    begins, whole = ends - np.diff(ends, prepend=0), np.diff(ends, prepend=0)
    second = np.add.reduceat((labels >= 2).astype(np.int64), begins) if len(ends) else _NONE
    first = whole - second
    prompts = np.stack([_before_answer(ends, labels == 1.0), _before_answer(ends, labels == 3.0) - first])
    wanted = np.stack([first, second])
    rejected = first == 0
    wanted[:, rejected], prompts[0, rejected] = wanted[::-1, rejected], prompts[1, rejected]
    others = _others(stream, begins, prompts[0]) if mismatched else _NONE
    if mismatched:
        wanted[1] = prompts[0] + (whole - prompts[0])[others]
    sizes = _fitting(wanted, sequence)
    return Answered(begins, sizes, first, prompts, rejected, sizes.sum(0) < wanted.sum(0), others, labels)


def _others(
    stream: Stream, begins: Int64[np.ndarray, " documents"], prompts: Int64[np.ndarray, " documents"]
) -> Int64[np.ndarray, " documents"]:
    """The nearest document before each that has another prompt: answers to one prompt often stand side by side."""
    tokens = np.concatenate([shard.data for shard in stream.shards] or [_NONE])
    spans = zip(begins.tolist(), prompts.tolist(), strict=True)
    keys = np.array([xxhash.xxh3_64_intdigest(tokens[begin : begin + size].data) for begin, size in spans], np.uint64)
    numbers = np.arange(len(keys))
    return (np.maximum.accumulate(np.where(keys != np.roll(keys, 1), numbers, 0)) - 1) % max(len(keys), 1)


def _before_answer(ends: Int64[np.ndarray, " documents"], answered: np.ndarray) -> Int64[np.ndarray, " documents"]:
    """Tokens of each document before its first that is `answered`; all of them where there is none."""
    found = np.diff(ends, prepend=0)
    places = np.flatnonzero(answered)
    documents, index = np.unique(np.searchsorted(ends, places, side="right"), return_index=True)
    found[documents] = places[index] - (ends - found)[documents]
    return found


def _fitting(wanted: Int64[np.ndarray, "2 documents"], sequence: int) -> Int64[np.ndarray, "2 documents"]:
    """Tokens of both that fit into a row together: the shorter one keeps up to a half, the other the rest."""
    a, b = wanted
    small_b = np.minimum(b, np.maximum(sequence - a, sequence // 2))
    small_a = np.minimum(a, sequence - small_b)
    return np.stack([small_a, np.minimum(b, sequence - small_a)])


def comparison_plan(stream: Stream, sequence: int, key: np.uint64 | None, found: Answered, name: str) -> TablePlan:
    """Plan of rows filled by best fit with whole documents, those aside that have an answer beyond a row."""
    totals = found.sizes.sum(0)
    learned = (found.prompts[0] < found.sizes[0]) & ((found.sizes[1] == 0) | (found.prompts[1] < found.sizes[1]))

    def pack(chosen: Documents) -> Int64[np.ndarray, "2 pieces"]:
        kept = np.flatnonzero(learned[chosen])
        ends = np.cumsum(totals[chosen[kept]])
        rows, begins, _ = best_fit(ends, sequence)
        return np.stack([rows, kept[np.searchsorted(ends, begins, side="right")]])

    table, digest = document_plan(stream, key, pack, f"{name} {sequence}")
    documents = np.searchsorted(stream_ends(stream), table[1], side="right")
    plan = TablePlan(table, sequence, int(totals[documents].sum()), digest)
    plan.cut, plan.dropped = int(np.count_nonzero(learned & found.cut)), int(np.count_nonzero(~learned))
    return plan


class Comparisons(BatchBuilder):
    """Builds batches of compared answers; `plans` are of `comparison_plan`."""

    def __init__(
        self,
        context: BuildContext,
        plans: Sequence[Plan],
        found: Sequence[Answered],
        objective: Comparing,
        references: Sequence[Float32[np.ndarray, "documents 2"]] | None,
    ) -> None:
        """`references`: log-probabilities of the answers of each stream; None takes 0."""
        super().__init__(plans)
        self._shards, self._ends = ShardTable(context.corpus, context.streams), [*map(stream_ends, context.streams)]
        self._found, self._objective, self._references = list(found), objective, references
        self._sequence, self._end, self._evaluation = context.sequence, context.corpus.end_id, context.evaluation
        self._is_rewarded = isinstance(objective, Reward)
        """The last token of a conversation is what counts of it."""
        self._mismatched = isinstance(objective, KTO) and not context.evaluation

    def documents(self, refs: SampleRefs) -> list[tuple[int, list[int]]]:
        """Stream and documents of each row."""
        bounds, begins, _ = self.segments(refs)
        found = []
        for row, stream in enumerate(refs.sources.tolist()):
            mine = begins[bounds[row] : bounds[row + 1]]
            found.append((stream, np.searchsorted(self._ends[stream], mine, side="right").tolist()))
        return found

    def build(self, refs: SampleRefs, micro_batch: int) -> BuiltBatch:
        count = len(refs.positions)
        tokens, targets, positions, marks = np.zeros((4, count, self._sequence), np.int64)
        tokens[:], targets[:] = self._end, self._end
        lengths: list[tuple[int, ...]] = []
        sides: list[list[int]] = []
        values: list[list[float]] = []
        for row, (stream, documents) in enumerate(self.documents(refs)):
            column, mine, known = 0, list[Conversation](), list[float]()
            for document in documents:
                mine += self._sequences(stream, document)
                known += self._known(stream, document)
            for number, each in enumerate(mine, 1):
                ids, answered = self._read(stream, each)
                size = len(ids)
                span = slice(column, column + size - 1)
                tokens[row, column : column + size] = ids
                targets[row, span], positions[row, column : column + size] = ids[1:], np.arange(size)
                marks[row, span] = 2 * number + answered[1:] * (not self._is_rewarded)
                marks[row, column + size - 1] = (2 * number + 1) * self._is_rewarded
                column += size
            pieces = [*(len(self._read(stream, each)[0]) for each in mine), self._sequence - column]
            lengths.append(tuple(size for size in pieces if size))
            sides.append([each.side for each in mine])
            values.append(known)
        return self._built(refs, micro_batch, (tokens, targets, positions, marks), lengths, (sides, values))

    def _built(
        self,
        refs: SampleRefs,
        micro_batch: int,
        arrays: tuple[np.ndarray, ...],
        lengths: list[tuple[int, ...]],
        answers: tuple[list[list[int]], list[list[float]]],
    ) -> BuiltBatch:
        tokens, targets, positions, marks = arrays
        most = max(map(len, answers[0]))
        sides = np.full((len(tokens), most), -1, np.int64)
        references = np.zeros((len(tokens), most), np.float32)
        for row, (mine, known) in enumerate(zip(*answers, strict=True)):
            sides[row, : len(mine)], references[row, : len(known)] = mine, known
        chosen = np.take_along_axis(sides, np.maximum(marks // 2 - 1, 0), 1) == CHOSEN
        plain = chosen & (marks > 0)
        counted = marks % 2 == 1
        if isinstance(self._objective, ORPO) and not self._evaluation:
            plain = plain if self._objective.prompts else plain & counted
            counted |= plain
        of_chosen = self._evaluation and not self._is_rewarded
        weights = (counted & chosen if of_chosen else counted).astype(np.float32)
        counts = int((sides == CHOSEN).sum()), int((sides == REJECTED).sum()), int(plain.sum())
        total = int(weights.sum()) if self._evaluation else counts[0] + counts[1] * (self._objective.labels == "rated")
        ids = tokens.astype(np.int32)
        rows = Rows(RowArrays(tokens, targets, weights, positions, ids, _NONE, _NONE, _NONE, _NONE), lengths, total)
        built = in_microbatches(rows, None, refs, micro_batch)
        if self._evaluation:
            return built

        def microbatch(j: int) -> Batch:
            mine = slice(j * micro_batch, (j + 1) * micro_batch)
            own = (torch.from_numpy(each[mine]) for each in (marks, sides, references))
            return replace(built.microbatch(j), compared=Compared(self._objective, *own, counts=counts))

        return built._replace(microbatch=microbatch)

    def _sequences(self, stream: int, document: int) -> list[Conversation]:
        found = self._found[stream]
        begin, (first, second) = int(found.begins[document]), found.sizes[:, document].tolist()
        if self._objective.labels == "preference":
            apart = int(found.seconds[document])
            return [Conversation(begin, first, CHOSEN), Conversation(begin + apart, second, REJECTED)]
        one = Conversation(begin, first, REJECTED if found.rejected[document] else CHOSEN)
        if not self._mismatched:
            return [one]
        other, prompt = int(found.others[document]), int(found.prompts[0, document])
        start = int(found.begins[other] + found.prompts[0, other])
        return [one, Conversation(start, second - prompt, MISMATCHED, (begin, prompt))]

    def _read(self, stream: int, each: Conversation) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of a conversation, and which are an answer."""
        spans = [*([each.head] if each.head is not None else []), (each.begin, each.size)]
        begins, sizes = (np.array(part, np.int64) for part in zip(*spans, strict=True))
        ids = self._shards.gather(np.full(len(spans), stream), begins, sizes)
        labels = self._found[stream].labels
        return ids, np.concatenate([labels[first : first + size] for first, size in spans]) % 2 == 1

    def _known(self, stream: int, document: int) -> list[float]:
        if self._references is None:
            return [0.0] * len(self._sequences(stream, document))
        return self._references[stream][document].tolist()[: len(self._sequences(stream, document))]


def build_comparisons(
    context: BuildContext, objective: Comparing, *, referenced: bool = True, ordered: bool = False
) -> Comparisons:
    """The builder of an objective. Raises UsageError where the data or the reference's log-probabilities do not fit.

    referenced: false leaves out the reference, as when it is computed. ordered: rows in the order of the documents.
    """
    labels, root = context.corpus.labels, context.corpus.root
    if labels is None or labels.kind != objective.labels:
        found = "none" if labels is None else f"those of kind {labels.kind}"
        raise UsageError(
            f'data.objective "{objective.kind}" needs labels of kind {objective.labels}, and {root} has {found}: '
            f'prepare it with text.labels.kind = "{objective.labels}"'
        )
    mismatched = isinstance(objective, KTO) and not context.evaluation
    find = partial(find_answers, sequence=context.sequence, mismatched=mismatched)
    answers = [find(stream) for stream in context.streams]
    references = None
    name = "compared"
    if referenced and isinstance(objective, Referenced) and not context.evaluation:
        kept = [read_references(context, stream, objective) for stream in context.streams]
        references, name = [values for values, _ in kept], f"compared {' '.join(digest for _, digest in kept)}"
    plans = []
    for stream, found in zip(context.streams, answers, strict=True):
        key = None if context.evaluation or ordered else np.uint64(key_of("labels", context.seed, stream.source))
        plan = comparison_plan(stream, context.sequence, key, found, f"{name} {mismatched}")
        if plan.rows == 0:
            what = f"no comparison of source {stream.source} is within train.sequence {context.sequence}"
            raise UsageError(f"{what}: raise it, or give shorter answers")
        plans.append(plan)
    builder = Comparisons(context, plans, answers, objective, references)
    for stream, plan in zip(context.streams, plans, strict=True):
        of = f"of {stream.documents:,} comparisons of source {stream.source}"
        told = {
            "have answers that are cut to fit": plan.cut,
            "have an answer beyond a row and are left out": plan.dropped,
        }
        builder.notes += [f"{n:,} {of} {what} (train.sequence {context.sequence})" for what, n in told.items() if n]
    return builder
