"""Batch builders of labelled sets, after a check that the labels fit the objective."""

from collections.abc import Iterator, Sequence

import numpy as np

from hornbook.data.batch_builder import BatchBuilder, BuildContext
from hornbook.data.config.objective import Objective
from hornbook.data.config.objectives import Answer, Labels, Seq2Seq
from hornbook.data.corpus import Corpus, Stream
from hornbook.data.labelled.answer_pairs import AnswerPairs, answer_plan
from hornbook.data.labelled.plan import row_plan
from hornbook.data.labelled.rows import LabelledRows
from hornbook.data.order.random_keys import key_of
from hornbook.data.packing.plan import TablePlan
from hornbook.data.vocabulary import load_vocabulary
from hornbook.errors import UsageError
from hornbook.text.config.labels import ChatLabels, ClassLabels, TagLabels

_BLOCK = 1 << 20
_FITTING = {"answer": ("answer", "seq2seq"), "chat": ("answer",)}
"""Kind of labels -> kinds of objectives that learn them; others are learned by `labels`."""


def build_labelled(context: BuildContext, objective: Objective) -> BatchBuilder:
    """Rows of labelled texts, or pairs. Raises UsageError where the data has no labels, or others than it needs."""
    assert isinstance(objective, Labels | Answer | Seq2Seq)
    _check(context, objective)
    vocabulary = load_vocabulary(context.corpus)
    if isinstance(objective, Seq2Seq):
        around = 1 + (vocabulary.begin_id is not None)
        plans = [answer_plan(stream, context.sequence, around, key) for stream, key in _streams(context)]
        _check_documents(context.streams, plans)
        start = vocabulary.pad_id if objective.start == "pad" else vocabulary.end_id
        return AnswerPairs(context, plans, vocabulary, start)
    balance = isinstance(objective, Labels) and objective.balance and not context.evaluation
    answers = isinstance(context.corpus.labels, ChatLabels)
    plans = [
        row_plan(stream, context.sequence, key, balance=balance, answers=answers) for stream, key in _streams(context)
    ]
    _check_documents(context.streams, plans)
    rows = LabelledRows(context, plans, objective, vocabulary.tokenizer.ends_between)
    rows.notes = _cut_notes(context.streams, plans) if answers else []
    return rows


def _cut_notes(streams: Sequence[Stream], plans: Sequence[TablePlan]) -> list[str]:
    """How many conversations are longer than a row."""
    notes = []
    for stream, plan in zip(streams, plans, strict=True):
        if plan.cut:
            of = f"of {stream.documents:,} conversations of source {stream.source}"
            notes.append(f"{plan.cut:,} {of} are longer than train.sequence {plan.sequence} and lose their end")
        if plan.dropped:
            of = f"of {stream.documents:,} conversations of source {stream.source}"
            notes.append(f"{plan.dropped:,} {of} have no answer within train.sequence {plan.sequence} and are left out")
    return notes


def _streams(context: BuildContext) -> Iterator[tuple[Stream, np.uint64 | None]]:
    """Each stream, and the key that the order of its documents is drawn from; None in evaluation: as they are."""
    for stream in context.streams:
        key = np.uint64(key_of("labels", context.seed, stream.source))
        yield stream, None if context.evaluation else key


def _check_documents(streams: Sequence[Stream], plans: Sequence[TablePlan]) -> None:
    for stream, plan in zip(streams, plans, strict=True):
        if plan.rows == 0:
            if plan.dropped:
                remedy = "raise train.sequence, or give shorter conversations"
                raise UsageError(f"no conversation of source {stream.source} has an answer within a row: {remedy}")
            raise UsageError(f"data.weights: source {stream.source} has no labelled documents: give it weight 0")


def _check(context: BuildContext, objective: Labels | Answer | Seq2Seq) -> None:
    root, labels = context.corpus.root, context.corpus.labels
    key = f'data.objective "{objective.kind}"'
    if labels is None:
        raise UsageError(f"{key} needs labels, and {root} has none: prepare it with a section [text.labels]")
    if objective.kind not in (fitting := _FITTING.get(labels.kind, ("labels",))):
        names = " or ".join(f'"{name}"' for name in fitting)
        raise UsageError(f"{key} does not fit the labels of {root}, whose kind is {labels.kind}: take {names}")
    if (
        isinstance(objective, Labels)
        and objective.balance
        and not (isinstance(labels, ClassLabels) and not labels.multiple)
    ):
        raise UsageError(f"data.objective.balance needs one label for each text, not those of {root} ({labels.kind})")
    if context.config.packing != "concat" and not context.evaluation:
        text = "packs plain text, and labelled texts are packed whole by themselves"
        raise UsageError(f'data.packing: "{context.config.packing}" {text}: leave it at "concat"')


def only_label(corpus: Corpus) -> str | None:
    """The label of all training data, where a label is one of several; None if labels differ. Stops at the second."""
    kind = corpus.labels
    if not isinstance(kind, ClassLabels | TagLabels) or (isinstance(kind, ClassLabels) and kind.multiple):
        return None
    seen: set[int] = set()
    for shard in (shard for stream in corpus.train.values() for shard in stream.shards):
        labels = shard.labels
        assert labels is not None
        for first in range(0, len(labels), _BLOCK):
            part = labels[first : first + _BLOCK, 0]
            seen |= set(np.unique(part[~np.isnan(part)]).astype(int).tolist())
            if len(seen) > 1:
                return None
    return kind.labels[seen.pop()] if seen else None
